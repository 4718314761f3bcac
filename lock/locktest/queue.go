package locktest

import (
	"context"
	"errors"
	"time"

	"github.com/herdgate/herdgate/lock"
)

// The tests of what only some backends promise, by their Capabilities. On other backends they ask for nothing.

// stander is an owner with a place in the queue.
type stander struct {
	claim lock.Claim
	turn  func(context.Context) error
}

// queue takes a place for owner. ok is false if the backend has no queue, which must be what it says.
func (s *suite) queue(owner string, ttl time.Duration) (place stander, ok bool) {
	s.Helper()
	return s.queueFor(lock.Request{Name: s.name, Owner: owner, TTL: ttl})
}

func (s *suite) queueFor(req lock.Request) (place stander, ok bool) {
	s.Helper()
	queuer, ok := s.backend.(lock.Queuer)
	if fair := s.backend.Capabilities().Fair; fair && !ok {
		s.Fatal("the Capabilities say Fair, but the backend is no Queuer")
	}
	if !ok {
		return stander{}, false
	}
	turn, err := queuer.Queue(s.Context(), req)
	s.must(err)
	return stander{lock.Claim{Name: req.Name, Owner: req.Owner}, turn}, true
}

// goesOn returns what the turn of a place comes to.
func (s *suite) goesOn(place stander) <-chan error {
	ended := make(chan error, 1)
	go func() { ended <- place.turn(s.Context()) }()
	return ended
}

// gets waits until it is the turn of a place, and takes the lock.
func (s *suite) gets(place stander, ended <-chan error) lock.Claim {
	s.Helper()
	select {
	case err := <-ended:
		s.must(err)
	case <-time.After(patience):
		s.Fatalf("%s waited %v in vain for its turn", place.claim.Owner, patience)
	}
	return s.acquire(place.claim.Owner, long)
}

// refused fails the test unless the request finds the lock taken.
func (s *suite) refused(req lock.Request) {
	s.Helper()
	_, err := s.backend.Acquire(s.Context(), req)
	s.wants(err, lock.ErrNotAcquired)
}

func (s *suite) queueIsInOrder() {
	first := s.acquire("first", long)
	var places []stander
	for _, owner := range []string{"b", "c", "d"} {
		place, ok := s.queue(owner, long)
		if !ok {
			return
		}
		places = append(places, place)
	}
	var ended []<-chan error
	for _, place := range places {
		ended = append(ended, s.goesOn(place))
	}
	s.refused(lock.Request{Name: s.name, Owner: places[0].claim.Owner, TTL: long}) // its turn has not come
	last := first
	for i, place := range places {
		s.must(s.backend.Release(s.Context(), last))
		s.isHeld() // nobody overtakes those who wait
		next := s.gets(place, ended[i])
		if s.backend.Capabilities().Fence && next.Token <= last.Token {
			s.Errorf("token %d after %d", next.Token, last.Token)
		}
		last = next
	}
	s.must(s.backend.Release(s.Context(), last))
	s.isFree()
}

func (s *suite) queueIsLeft() {
	first := s.acquire("a", long)
	b, ok := s.queue("b", long)
	if !ok {
		return
	}
	c, _ := s.queue("c", long)
	ctx, cancel := context.WithCancel(s.Context())
	left := make(chan error, 1)
	go func() { left <- b.turn(ctx) }()
	cancel()
	s.wants(<-left, context.Canceled)
	s.must(s.backend.Release(s.Context(), b.claim))
	s.must(s.backend.Release(s.Context(), first))
	s.must(s.backend.Release(s.Context(), s.gets(c, s.goesOn(c))))
	s.isFree()
}

func (s *suite) placesAreKept() {
	first := s.acquire("a", long)
	b, ok := s.queue("b", brief)
	if !ok {
		return
	}
	ended := s.goesOn(b)
	s.outlast(brief)
	s.outlast(brief)
	c, _ := s.queue("c", long)
	s.must(s.backend.Release(s.Context(), first))
	second := s.gets(b, ended)
	s.must(s.backend.Release(s.Context(), second))
	s.must(s.backend.Release(s.Context(), s.gets(c, s.goesOn(c))))
}

func (s *suite) placesExpire() {
	first := s.acquire("a", long)
	if _, ok := s.queue("b", brief); !ok {
		return
	}
	s.outlast(brief)
	s.must(s.backend.Release(s.Context(), first))
	s.isFree()
}

func (s *suite) expiryMovesTheQueue() {
	s.acquire("a", brief)
	b, ok := s.queue("b", long)
	if !ok {
		return
	}
	s.must(s.backend.Release(s.Context(), s.gets(b, s.goesOn(b))))
	s.isFree()
}

func (s *suite) queueIsLeftByTheEngine() {
	if _, ok := s.backend.(lock.Queuer); !ok {
		return
	}
	seen := newRecorder()
	engine := s.engine(s.backend, lock.Options{TTL: time.Minute, Monitor: seen.record})
	first := s.acquire("a", long)
	ctx, cancel := context.WithCancel(s.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := engine.Lock(ctx, s.name)
		ended <- err
	}()
	s.await(seen, lock.Contended, 1)
	cancel()
	s.wants(<-ended, lock.ErrNotAcquired, context.Canceled)
	s.must(engine.Close(s.detached()))
	s.must(s.backend.Release(s.Context(), first))
	s.isFree()
}

// shared is the request of a reader.
func (s *suite) shared(owner string) lock.Request {
	return lock.Request{Name: s.name, Owner: owner, TTL: long, Shared: true}
}

func (s *suite) readersShare() {
	if !s.backend.Capabilities().Shared {
		return
	}
	var readers []lock.Claim
	for _, owner := range []string{"a", "b", "a"} { // a asks twice
		grant, err := s.backend.Acquire(s.Context(), s.shared(owner))
		s.must(err)
		readers = append(readers, lock.Claim{Name: s.name, Owner: owner, Token: grant.Token})
	}
	if readers[0] != readers[2] {
		s.Errorf("the second acquire of one reader got %+v, the first %+v", readers[2], readers[0])
	}
	s.isHeld()
	s.must(s.backend.Release(s.Context(), readers[0]))
	s.wants(s.backend.Release(s.Context(), readers[0]), lock.ErrNotHeld)
	s.isHeld()
	s.must(s.backend.Renew(s.Context(), readers[1], long))
	s.must(s.backend.Release(s.Context(), readers[1]))

	writer := s.acquire("c", long)
	if s.backend.Capabilities().Fence && writer.Token <= max(readers[0].Token, readers[1].Token) {
		s.Errorf("token %d after those of the readers, %d and %d", writer.Token, readers[0].Token, readers[1].Token)
	}
	s.refused(s.shared("d"))
	s.must(s.backend.Release(s.Context(), writer))
	s.isFree()
}

func (s *suite) readersDoNotStarveWriters() {
	if !s.backend.Capabilities().Shared {
		return
	}
	grant, err := s.backend.Acquire(s.Context(), s.shared("a"))
	s.must(err)
	first := lock.Claim{Name: s.name, Owner: "a", Token: grant.Token}
	writer, ok := s.queue("writer", long)
	if !ok {
		return
	}
	b, _ := s.queueFor(s.shared("b"))
	c, _ := s.queueFor(s.shared("c"))
	s.refused(s.shared("d")) // though only a reader holds the lock
	_, err = s.backend.Acquire(s.Context(), s.shared("a"))
	s.must(err) // it has its place already

	s.must(s.backend.Release(s.Context(), first))
	second := s.gets(writer, s.goesOn(writer))
	s.must(s.backend.Release(s.Context(), second))
	for _, reader := range []stander{b, c} { // both hold it then
		s.must(<-s.goesOn(reader))
		_, err := s.backend.Acquire(s.Context(), s.shared(reader.claim.Owner))
		s.must(err)
	}
	s.isHeld()
	s.must(s.backend.Release(s.Context(), b.claim))
	s.must(s.backend.Release(s.Context(), c.claim))
	s.isFree()
}

func (s *suite) sharingNeedsABackend() {
	engine := s.engine(s.backend, lock.Options{TTL: time.Minute})
	if !s.backend.Capabilities().Shared {
		for _, get := range []func(context.Context, string) (*lock.Lease, error){engine.RLock, engine.TryRLock} {
			_, err := get(s.Context(), s.name)
			s.wants(err, errors.ErrUnsupported)
		}
		s.isFree()
		return
	}
	first, err := engine.RLock(s.Context(), s.name)
	s.must(err)
	second, err := engine.TryRLock(s.Context(), s.name)
	s.must(err)
	_, err = engine.TryLock(s.Context(), s.name)
	s.wants(err, lock.ErrNotAcquired)
	s.must(first.Unlock(s.Context()))
	s.must(second.Unlock(s.Context()))
	s.isFree()
}
