package remote

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Invalidation is a change as the bus tells it.
type Invalidation struct {
	Instance string // the gate that made the change
	ID       string // of the change
	Op       Op
	Cache    string
	Key      string
}

// Listener is told what comes over the bus, by one goroutine, in order.
type Listener interface {
	// Invalidated: a change was made, by this instance or another one.
	Invalidated(Invalidation)
	// Woken: a lease of the key ended that somebody waited for.
	Woken(cache, key string)
	// Lost: messages may have been lost since the last Confirmed.
	Lost(reason error)
	// Confirmed: the server has confirmed the subscription; what is sent from now on arrives.
	Confirmed()
}

const (
	heartbeatEvery = time.Second
	heartbeatGrace = 2 * heartbeatEvery // without one for so long, messages may be lost
	reconnectFloor = 20 * time.Millisecond
	reconnectCap   = time.Second
)

var (
	errNoHeartbeat = errors.New("herdgate: no heartbeat came back over the bus")
	errReplaced    = errors.New("herdgate: the subscription was replaced")
)

// Bus receives the messages of a namespace. One goroutine keeps the subscription,
// one publishes a heartbeat with the command client: a PING on the subscription
// would be answered also by a node that hears nothing from the others any more.
type Bus struct {
	store    *Store
	listener Listener
	beats    string // channel of this instance's heartbeat
	stop     context.CancelFunc
	wg       sync.WaitGroup
}

// Listen starts the bus. ctx lends its values; the bus ends with Close.
func (s *Store) Listen(ctx context.Context, l Listener) *Bus {
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	b := &Bus{store: s, listener: l, beats: s.namespace + ":" + s.instance, stop: stop}
	b.wg.Go(func() { b.receive(ctx) })
	b.wg.Go(func() { b.beat(ctx) })
	return b
}

// Close ends the bus and waits for its goroutines. What go-redis does not let go of
// yet, say a dial, is left to Store.Wait.
func (b *Bus) Close() {
	b.stop()
	b.wg.Wait()
}

func (b *Bus) beat(ctx context.Context) {
	tick := time.NewTicker(heartbeatEvery)
	defer tick.Stop()
	for {
		// A failure needs no handling: the heartbeat then does not come back.
		_, _ = bounded(ctx, b.store, func(ctx context.Context) (int64, error) {
			return b.store.rdb.Publish(ctx, b.beats, "H").Result()
		})
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// receive subscribes, reads until something is wrong, and starts again.
func (b *Bus) receive(ctx context.Context) {
	wait := reconnectFloor
	for {
		confirmed, err := b.session(ctx)
		if ctx.Err() != nil {
			return
		}
		b.store.forgetClocks() // the next server may have another
		b.listener.Lost(err)
		if confirmed {
			wait = reconnectFloor
		}
		pause := time.NewTimer(wait/2 + rand.N(wait/2))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return
		}
		wait = min(2*wait, reconnectCap)
	}
}

// session is the life of one subscription. It ends with the first error of the
// connection, since go-redis would reconnect silently, or without a heartbeat.
// go-redis dials anew before it tells such an error, and neither that nor a read
// ends with ctx: so it runs beside the session, which ends on time in any case.
func (b *Bus) session(ctx context.Context) (confirmed bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sub := b.store.rdb.Subscribe(ctx)
	inbox := make(chan any)
	b.store.calls.Go(func() { read(ctx, sub, inbox, b.store.channel, b.beats) })
	// Close interrupts the read, but waits for a dial.
	defer b.store.calls.Go(func() { _ = sub.Close() })

	acks := 0
	silence := time.NewTimer(heartbeatGrace)
	defer silence.Stop()
	for {
		select {
		case <-silence.C:
			return confirmed, errNoHeartbeat
		case <-ctx.Done():
			return confirmed, ctx.Err()
		case received := <-inbox:
			switch m := received.(type) {
			case error:
				return confirmed, m
			case *redis.Subscription:
				acks++
				switch {
				case acks == 2:
					confirmed = true
					silence.Reset(heartbeatGrace)
					b.listener.Confirmed()
				case acks > 2: // go-redis reconnected and subscribed anew behind our back
					return confirmed, errReplaced
				}
			case *redis.Message:
				if m.Channel == b.beats {
					silence.Reset(heartbeatGrace)
					continue
				}
				b.dispatch(m.Payload)
			}
		}
	}
}

// read subscribes and puts what comes into inbox, up to and including the first error.
func read(ctx context.Context, sub *redis.PubSub, inbox chan<- any, channels ...string) {
	err := sub.Subscribe(ctx, channels...)
	for {
		var received any
		if err == nil {
			received, err = sub.Receive(ctx)
		}
		if err != nil {
			received = err
		}
		select {
		case inbox <- received:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// Messages are fields separated by spaces; a key stands last, since it may hold any byte.

func invalidation(instance string, c Change) string {
	return "I " + instance + " " + c.ID + " " + string(c.Op) + " " + c.Cache + " " + c.Key
}

func wakeUp(cache, key string) string { return "W " + cache + " " + key }

// dispatch reads a message. One that this version does not know is left to those that do.
func (b *Bus) dispatch(message string) {
	switch kind, rest, _ := strings.Cut(message, " "); kind {
	case "I":
		if f := strings.SplitN(rest, " ", 5); len(f) == 5 {
			b.listener.Invalidated(Invalidation{Instance: f[0], ID: f[1], Op: Op(f[2]), Cache: f[3], Key: f[4]})
		}
	case "W":
		if cache, key, ok := strings.Cut(rest, " "); ok {
			b.listener.Woken(cache, key)
		}
	}
}
