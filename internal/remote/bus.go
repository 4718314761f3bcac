package remote

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate/singleflight"
)

// Invalidation is a change as the bus tells it.
type Invalidation struct {
	Instance string // the gate that made the change
	ID       string // of the change
	Op       Op
	Cache    string
	Key      string
}

// Cleared is a new generation as the bus tells it.
type Cleared struct {
	Instance, ID string // as for Invalidation
	Cache        string
	Generation   uint64
}

// TagsRaised is an invalidation of tags as the bus tells it.
type TagsRaised struct {
	Instance, ID string // as for Invalidation
	Cache        string
	Tags         []string
	Number       uint64
}

// Receiver is told the messages of the bus, by one goroutine, in order.
type Receiver interface {
	// Invalidated: a change was made, by this instance or another one.
	Invalidated(Invalidation)
	// Cleared: a generation of a cache began.
	Cleared(Cleared)
	// TagsRaised: what has one of the tags is invalid if it is from before the number.
	TagsRaised(TagsRaised)
	// Woken: a lease of the key ended that somebody waited for.
	Woken(cache, key string)
	// Lost: messages may have been lost since the last Confirmed.
	Lost(reason error)
	// Confirmed: the server has confirmed the subscription; what is sent from now on arrives.
	Confirmed()
}

// Listener is a gate that listens to the bus.
type Listener interface {
	Receiver

	// Caches names the caches whose generations are to be read with the heartbeat, and
	// Generations is told them, 0 for one that could not be read; by another goroutine
	// than the rest. Between the two calls nothing may be taken for newer than the reply.
	Caches() (names []string, told func(generations []uint64))

	// Remembers reports whether there are changes that a failover may have lost. While it
	// does, the masters are asked with the heartbeat whether they are the same as before.
	Remembers() bool
	// SameMasters is told that all of them were masters when they were asked before, too.
	// asked is when they were now.
	SameMasters(asked time.Time)
	// OtherMaster is told that one of them was not: it may lack what was sent until now.
	OtherMaster()
}

const (
	heartbeatEvery = time.Second
	heartbeatGrace = 2 * heartbeatEvery // without one for so long, messages may be lost
	reconnectFloor = 20 * time.Millisecond
	reconnectCap   = time.Second
	heartbeat      = "H" // the message
	// leap is how far the wall clock and the monotonic one may drift apart between two
	// heartbeats. Clocks that are kept right by slewing stay far below it.
	leap = time.Second / 2
)

var (
	errNoHeartbeat = errors.New("herdgate: no heartbeat came back over the bus")
	errReplaced    = errors.New("herdgate: the subscription was replaced")
	errLeap        = errors.New("herdgate: the wall clock was set, or this machine has slept: what is known of times is learned anew")
)

// Bus receives the messages of a namespace. One goroutine keeps the subscription,
// one publishes a heartbeat with the command client: a PING on the subscription
// would be answered also by a node that hears nothing from the others any more.
type Bus struct {
	store    *Store
	listener Listener
	beats    string        // channel of this instance's heartbeat
	leapt    chan struct{} // gets a token when the clocks have
	masters  masters       // of the goroutine that beats
	stop     context.CancelFunc
	wg       sync.WaitGroup
}

// Listen starts the bus. ctx lends its values; the bus ends with Close.
func (s *Store) Listen(ctx context.Context, l Listener) *Bus {
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	b := &Bus{store: s, listener: l, beats: s.beats(), leapt: make(chan struct{}, 1), stop: stop}
	if s.routed.Load() { // a server that answers: who it is must be known before the first change
		b.look(ctx)
	}
	b.wg.Go(func() { b.receive(ctx) })
	b.wg.Go(func() { b.beat(ctx) })
	return b
}

// beats is the channel of this instance's heartbeat.
func (s *Store) beats() string { return s.namespace + ":" + s.instance }

// Close ends the bus and waits for its goroutines. What go-redis does not let go of
// yet, say a dial, is left to Store.Wait.
func (b *Bus) Close() {
	b.stop()
	b.wg.Wait()
}

// Kick makes the next heartbeat come now, with the generations of the caches.
func (b *Bus) Kick() { poke(b.store.kick) }

func (b *Bus) beat(ctx context.Context) {
	tick := time.NewTicker(heartbeatEvery)
	defer tick.Stop()
	apart := b.store.apart()
	for {
		// The monotonic clock stands while the machine sleeps: copies would be served for
		// that much longer, and the server's time is not what it is believed to be.
		last := apart
		if apart = b.store.apart(); (apart - last).Abs() >= leap {
			select {
			case b.leapt <- struct{}{}:
			default:
			}
		}
		// A failure needs no handling: the heartbeat then does not come back.
		caches, told := b.listener.Caches()
		told(b.store.beat(ctx, b.beats, caches))
		b.look(ctx)
		select {
		case <-tick.C:
		case <-b.store.kick:
		case <-ctx.Done():
			return
		}
	}
}

// look asks who the masters are: once at first, and then while there is a reason. A failure needs no handling: the
// next heartbeat asks again.
func (b *Bus) look(ctx context.Context) {
	if b.masters.asked && !b.listener.Remembers() {
		return
	}
	asked := time.Now()
	ids, err := b.store.masterIDs(ctx)
	switch {
	case err == nil && b.masters.learn(ids):
		b.listener.OtherMaster()
	case err == nil:
		b.listener.SameMasters(asked)
	case Answered(err):
		b.masters.asked = true // it does not tell: no right to INFO, or a proxy
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
			wait = min(2*wait, reconnectCap)
		case <-b.store.revived:
			pause.Stop()
			wait = reconnectFloor
		case <-ctx.Done():
			pause.Stop()
			return
		}
	}
}

// session is the life of one subscription. It ends with the first error of the
// connection, since go-redis would reconnect silently, or without a heartbeat.
// go-redis dials anew before it tells such an error, and neither that nor a read
// ends with ctx: so it runs beside the session, which ends on time in any case.
func (b *Bus) session(ctx context.Context) (confirmed bool, err error) {
	if server := &b.store.server; server.absent.Load() || server.overhung() {
		return false, ErrDown // a dial would only fail, see breaker.knock, or hang as the others
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sub := b.store.rdb.Subscribe(ctx)
	inbox := make(chan any)
	s := stray{breaker: &b.store.server}
	b.store.calls.Go(func() {
		defer s.ended()
		read(ctx, sub, inbox, b.store.channel, b.beats)
	})
	// Close interrupts the read, but waits for a dial.
	defer b.store.calls.Go(func() { _ = sub.Close() })
	defer s.givenUp()

	acks := 0
	silence := time.NewTimer(heartbeatGrace)
	defer silence.Stop()
	for {
		select {
		case <-silence.C:
			return confirmed, errNoHeartbeat
		case <-b.leapt:
			return confirmed, errLeap
		case <-ctx.Done():
			return confirmed, ctx.Err()
		case received := <-inbox:
			switch m := received.(type) {
			case error:
				return confirmed, b.store.denied(m, "subscribe")
			case *redis.Subscription:
				acks++
				switch {
				case acks == 2:
					confirmed = true
					silence.Reset(heartbeatGrace)
					b.listener.Confirmed()
					// Who answers a subscription may answer all else; and there may be another master.
					poke(b.store.server.wake)
					b.Kick()
				case acks > 2: // go-redis reconnected and subscribed anew behind our back
					return confirmed, errReplaced
				}
			case *redis.Message:
				if m.Channel == b.beats {
					silence.Reset(heartbeatGrace)
					continue
				}
				dispatch(m.Payload, b.listener)
			}
		}
	}
}

// read subscribes and puts what comes into inbox, up to and including the first error. A
// Dialer that panics is one: the client recovers it for commands, not for subscriptions.
func read(ctx context.Context, sub *redis.PubSub, inbox chan<- any, channels ...string) {
	_, err := singleflight.Protect(func() (any, error) { return nil, sub.Subscribe(ctx, channels...) })
	for {
		var received any
		if err == nil {
			received, err = singleflight.Protect(func() (any, error) { return sub.Receive(ctx) })
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
func dispatch(message string, to Receiver) (known bool) {
	switch kind, rest, _ := strings.Cut(message, " "); kind {
	case "I":
		if f := strings.SplitN(rest, " ", 5); len(f) == 5 {
			to.Invalidated(Invalidation{Instance: f[0], ID: f[1], Op: Op(f[2]), Cache: f[3], Key: f[4]})
			return true
		}
	case "G":
		if f := strings.Split(rest, " "); len(f) == 4 {
			if n, err := strconv.ParseUint(f[3], 10, 64); err == nil {
				to.Cleared(Cleared{Instance: f[0], ID: f[1], Cache: f[2], Generation: n})
				return true
			}
		}
	case "T":
		if f := strings.SplitN(rest, " ", 4); len(f) == 4 {
			tags, number, _ := cutTags(f[3])
			if n, err := strconv.ParseUint(number, 10, 64); err == nil {
				to.TagsRaised(TagsRaised{Instance: f[0], ID: f[1], Cache: f[2], Tags: tags, Number: n})
				return true
			}
		}
	case "W":
		if cache, key, ok := strings.Cut(rest, " "); ok {
			to.Woken(cache, key)
			return true
		}
	}
	return false
}
