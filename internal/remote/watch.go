package remote

import (
	"context"
	"errors"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Watcher is told what a watch hears, by one goroutine, in order.
type Watcher interface {
	Receiver
	// Beat: a gate has published its heartbeat.
	Beat(instance string)
	// Unknown: a message that this version does not know.
	Unknown(message string)
}

// watchPatience is how long a subscription may be silent before it is asked whether
// it is alive, and how long its answer may take.
const watchPatience = 2 * time.Second

// Watch tells w what comes over the bus until ctx ends, for a person: unlike a [Bus]
// it sends no heartbeats, so that a cut link between the nodes of a Cluster goes
// unnoticed. beats adds the heartbeats of all gates of the namespace. It returns an
// error only if the first subscription fails.
func (s *Store) Watch(ctx context.Context, w Watcher, beats bool) error {
	heard := &watch{Watcher: w, beats: beats}
	for {
		err := s.watch(ctx, heard)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the end that was asked for
		case !heard.ever:
			return err
		case heard.confirmed:
			w.Lost(err)
			heard.confirmed = false
		}
		pause := time.NewTimer(reconnectCap / 2)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return nil
		}
	}
}

type watch struct {
	Watcher
	beats           bool
	confirmed, ever bool // the subscription of now, and any
}

// watch is the life of one subscription. It ends with the first error: go-redis
// would reconnect silently.
func (s *Store) watch(ctx context.Context, w *watch) error {
	sub := s.rdb.Subscribe(ctx)
	closing := context.AfterFunc(ctx, func() { _ = sub.Close() }) // interrupts a read
	defer func() {
		closing()
		_ = sub.Close()
	}()
	subscribe, to := sub.Subscribe, s.channel
	if w.beats { // they have a channel for each gate; the bus has a name of the same form
		subscribe, to = sub.PSubscribe, s.namespace+":*"
	}
	if err := subscribe(ctx, to); err != nil {
		return err
	}
	asked := false
	for {
		received, err := sub.ReceiveTimeout(ctx, watchPatience)
		if late, ok := errors.AsType[net.Error](err); ok && late.Timeout() && w.confirmed && !asked {
			asked = true
			if err := sub.Ping(ctx); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		asked = false
		switch m := received.(type) {
		case *redis.Subscription:
			if w.confirmed {
				return errReplaced
			}
			w.confirmed, w.ever = true, true
			w.Confirmed()
		case *redis.Message:
			s.tell(w, m)
		}
	}
}

func (s *Store) tell(w Watcher, m *redis.Message) {
	if m.Channel == s.channel {
		if !dispatch(m.Payload, w) {
			w.Unknown(m.Payload)
		}
		return
	}
	if instance, ok := strings.CutPrefix(m.Channel, s.namespace+":"); ok && m.Payload == heartbeat {
		w.Beat(instance)
	}
}
