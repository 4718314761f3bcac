package locktest

import (
	"crypto/rand"
	"errors"
	"time"

	"github.com/herdgate/herdgate/lock"
)

// The tests of what a lock.Backend promises by itself.

func (s *suite) contendedIsNotAcquired() {
	s.acquire("a", long)
	_, err := s.backend.Acquire(s.Context(), lock.Request{Name: s.name, Owner: "b", TTL: long})
	s.wants(err, lock.ErrNotAcquired)
	if hint := (*lock.ContendedError)(nil); errors.As(err, &hint) && (hint.RetryAfter < 0 || hint.RetryAfter > long) {
		s.Errorf("RetryAfter is %v of a TTL of %v", hint.RetryAfter, long)
	}
}

func (s *suite) onlyTheClaimCounts() {
	claim := s.acquire("a", long)
	foreign := []lock.Claim{
		{Name: s.name, Owner: "b", Token: claim.Token},
		{Name: s.name, Owner: "b"},
		{Name: s.name + "x", Owner: "a", Token: claim.Token},
	}
	if claim.Token != 0 {
		foreign = append(foreign, lock.Claim{Name: s.name, Owner: "a", Token: claim.Token + 1})
	}
	for _, other := range foreign {
		s.wants(s.backend.Renew(s.Context(), other, long), lock.ErrNotHeld)
		s.wants(s.backend.Release(s.Context(), other), lock.ErrNotHeld)
	}
	s.isHeld()
	s.must(s.backend.Renew(s.Context(), claim, long))
	s.must(s.backend.Release(s.Context(), claim))
}

func (s *suite) unknownToken() {
	s.acquire("a", long)
	s.must(s.backend.Renew(s.Context(), lock.Claim{Name: s.name, Owner: "a"}, long))
	s.must(s.backend.Release(s.Context(), lock.Claim{Name: s.name, Owner: "a"}))
	s.isFree()
}

func (s *suite) acquireIsIdempotent() {
	first := s.acquire("a", brief)
	second := s.acquire("a", long)
	if first != second {
		s.Errorf("the second acquire of one owner got %+v, the first %+v", second, first)
	}
	third := s.acquire("a", brief) // must not shorten it
	s.outlast(brief)
	s.isHeld()
	s.must(s.backend.Release(s.Context(), third))
	s.isFree()
}

func (s *suite) expiryFrees() {
	first := s.acquire("a", brief)
	second := s.acquireFreed("b")
	s.wants(s.backend.Renew(s.Context(), first, long), lock.ErrNotHeld)
	s.wants(s.backend.Release(s.Context(), first), lock.ErrNotHeld)
	s.isHeld()
	s.must(s.backend.Release(s.Context(), second))

	// Nobody takes it over: neither call may bring it back.
	expired := s.acquire("c", brief)
	s.outlast(brief)
	s.wants(s.backend.Renew(s.Context(), expired, long), lock.ErrNotHeld)
	s.wants(s.backend.Release(s.Context(), expired), lock.ErrNotHeld)
	s.isFree()
}

func (s *suite) renewNeverShortens() {
	claim := s.acquire("a", brief)
	s.must(s.backend.Renew(s.Context(), claim, long))
	s.must(s.backend.Renew(s.Context(), claim, brief))
	s.outlast(brief)
	s.isHeld()
	s.must(s.backend.Release(s.Context(), claim))
}

func (s *suite) releaseFrees() {
	claim := s.acquire("a", long)
	s.must(s.backend.Release(s.Context(), claim))
	s.wants(s.backend.Release(s.Context(), claim), lock.ErrNotHeld)
	s.wants(s.backend.Renew(s.Context(), claim, long), lock.ErrNotHeld)
	s.isFree()
}

func (s *suite) tokensRise() {
	fence := s.backend.Capabilities().Fence
	var last uint64
	for _, ttl := range []time.Duration{long, brief, long, brief, long} {
		claim := s.acquireFreed(rand.Text())
		if fence && claim.Token <= last {
			s.Fatalf("token %d after %d", claim.Token, last)
		}
		last = claim.Token
		s.must(s.backend.Release(s.Context(), claim))

		claim = s.acquire(rand.Text(), ttl)
		if fence && claim.Token <= last {
			s.Fatalf("token %d after %d", claim.Token, last)
		}
		last = claim.Token
		if ttl == long {
			s.must(s.backend.Release(s.Context(), claim)) // else it expires
		}
	}
}

func (s *suite) badRequests() {
	bad := []lock.Request{
		{Owner: "a", TTL: long},
		{Name: s.name, TTL: long},
		{Name: s.name, Owner: "a"},
		{Name: s.name, Owner: "a", TTL: -time.Second},
		{Name: s.name, Owner: "a", TTL: 400 * time.Microsecond},
	}
	for _, req := range bad {
		if _, err := s.backend.Acquire(s.Context(), req); err == nil || errors.Is(err, lock.ErrNotAcquired) {
			s.Errorf("acquire with %+v: got error %v, want a refusal that is not ErrNotAcquired", req, err)
		}
	}
	s.isFree()

	claim := s.acquire("a", long)
	for _, ttl := range []time.Duration{0, -1, 400 * time.Microsecond} {
		if err := s.backend.Renew(s.Context(), claim, ttl); err == nil || errors.Is(err, lock.ErrNotHeld) {
			s.Errorf("renew with a TTL of %v: got error %v, want a refusal that is not ErrNotHeld", ttl, err)
		}
	}
	s.isHeld()
	s.must(s.backend.Release(s.Context(), claim))
}

func (s *suite) namesAreExact() {
	base := s.name
	var claims []lock.Claim
	for _, suffix := range []string{"", " ", "{", "}", "{}", "%7D", "%", "%25", ":", "*", "/", "é", "\x00", "A", "a"} {
		s.name = base + suffix
		claims = append(claims, s.acquire("owner of "+suffix, long))
	}
	for _, claim := range claims {
		s.must(s.backend.Release(s.Context(), claim))
	}
}
