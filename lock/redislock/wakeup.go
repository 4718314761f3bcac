package redislock

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate/lock"
)

// resubscribeAfter is the pause after a failure to receive.
const resubscribeAfter = 250 * time.Millisecond

// wakeUps receives the names of released locks, on one subscription that begins with the first waiter.
type wakeUps struct {
	client  redis.UniversalClient
	channel string
	waiters lock.Waiters

	mu     sync.Mutex // protects the fields below
	pubsub *redis.PubSub
	cancel context.CancelFunc
	closed bool

	subscribed chan struct{} // closed at the first confirmation
	received   chan struct{} // closed when receive has returned
}

func newWakeUps(client redis.UniversalClient, channel string) *wakeUps {
	return &wakeUps{
		client:     client,
		channel:    channel,
		subscribed: make(chan struct{}),
		received:   make(chan struct{}),
	}
}

func (w *wakeUps) add(ctx context.Context, name string) (released <-chan struct{}, stop func(), err error) {
	if err := w.begin(ctx); err != nil {
		return nil, nil, err
	}
	released, stop = w.waiters.Add(name)
	select {
	case <-w.subscribed:
		return released, stop, nil
	case <-w.received:
		err = errClosed
	case <-ctx.Done():
		err = fmt.Errorf("redislock: no subscription for wake-ups: %w", ctx.Err())
	}
	stop()
	return nil, nil, err
}

// begin starts receive with the first waiter. It does not wait for the server.
func (w *wakeUps) begin(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return errClosed
	}
	if w.pubsub == nil {
		ctx, w.cancel = context.WithCancel(context.WithoutCancel(ctx))
		w.pubsub = w.client.Subscribe(ctx)
		go w.receive(ctx, w.pubsub)
	}
	return nil
}

func (w *wakeUps) close() {
	w.mu.Lock()
	if !w.closed {
		w.closed = true
		if w.pubsub == nil {
			close(w.received)
		} else {
			w.cancel()
			_ = w.pubsub.Close() // a read ends with its connection, not with its ctx
		}
	}
	w.mu.Unlock()
	<-w.received
}

// receive passes messages on until close. A failed read makes go-redis subscribe again, over a new connection.
func (w *wakeUps) receive(ctx context.Context, pubsub *redis.PubSub) {
	defer close(w.received)
	err := pubsub.Subscribe(ctx, w.channel)
	confirmed := false
	for ctx.Err() == nil {
		if err != nil {
			pause(ctx, resubscribeAfter)
		}
		var message any
		message, err = pubsub.Receive(ctx)
		switch m := message.(type) {
		case *redis.Message:
			w.waiters.Wake(m.Payload)
		case *redis.Subscription:
			if confirmed {
				w.waiters.WakeAll() // releases since the connection broke were not heard
				continue
			}
			confirmed = true
			close(w.subscribed)
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
