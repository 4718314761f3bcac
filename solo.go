package herdgate

import (
	"context"
	"sync"
	"time"

	"github.com/herdgate/herdgate/internal/remote"
)

// solo decides who loads in a gate without Redis: the build keys of one process, by
// the rules of the scripts. The entries are the copies of the local tier.
type solo struct {
	now  func() time.Duration
	wake func(key string)

	mu     sync.Mutex
	nonce  uint64           // protected by mu
	builds map[string]build // protected by mu
}

// build is a build key: state is Held for a lease, Failed, Cooling or Pass.
type build struct {
	state    remote.State
	nonce    uint64
	granted  time.Duration
	failures int
	code     string
	retry    time.Duration // Failed: no load before
	until    time.Duration // then it is as if it were not there; a lease has no end
}

// Acquire implements builder.
func (s *solo) Acquire(_ context.Context, keys remote.Keys, a remote.Acquire) (remote.Found, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	b := s.builds[keys.B()]
	switch {
	case b.state == remote.Held:
		// Its holder is a flight of this process: it ends the lease, and wakes us.
		return remote.Found{State: remote.Held, Rest: a.TTL}, nil
	case b.state == remote.Failed && now < b.retry:
		return remote.Found{State: remote.Failed, Rest: b.retry - now, Failures: b.failures, Code: b.code}, nil
	case (b.state == remote.Cooling || b.state == remote.Pass) && now < b.until:
		return remote.Found{State: b.state, Rest: b.until - now}, nil
	case now >= b.until:
		b.failures = 0
	}
	s.nonce++
	s.put(keys.B(), build{state: remote.Held, nonce: s.nonce, granted: now, failures: b.failures}, now)
	return remote.Found{State: remote.Granted, Nonce: s.nonce, Failures: b.failures}, nil
}

// Commit implements builder. The caller stores the entry, and wakes who waits.
func (s *solo) Commit(_ context.Context, keys remote.Keys, c remote.Commit) (remote.Stored, error) {
	if !s.end(keys.B(), c.Claim.Token, func(b build, _ time.Duration) build { return b.cooling(c.Interval, 0) }) {
		return remote.Refused, nil
	}
	return remote.Done, nil
}

// Finish implements builder.
func (s *solo) Finish(_ context.Context, keys remote.Keys, f remote.Finish) (bool, error) {
	held := s.end(keys.B(), f.Claim.Token, func(b build, now time.Duration) build {
		cool := b.granted + f.Interval
		switch f.State {
		case remote.FinishFailed:
			return build{
				state: remote.Failed, granted: b.granted, failures: b.failures + 1, code: f.Code,
				retry: max(now+f.For, cool), until: max(now+2*f.For, cool),
			}
		case remote.FinishPass:
			return build{state: remote.Pass, granted: b.granted, failures: b.failures, until: max(now+f.For, cool)}
		case remote.FinishNothing:
		}
		return b.cooling(f.Interval, b.failures)
	})
	if held {
		s.wake(f.Key)
	}
	return held, nil
}

// Change implements builder.
func (s *solo) Change(_ context.Context, keys remote.Keys, c remote.Change) (remote.Stored, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.builds[keys.B()]
	if b.state == remote.Held || c.Op == remote.OpSet && b.state == remote.Failed {
		failures := b.failures
		if c.Op == remote.OpSet {
			failures = 0
		}
		s.put(keys.B(), b.cooling(c.Interval, failures), s.now())
	}
	return remote.Done, nil
}

// clear takes all leases away.
func (s *solo) clear(interval time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, b := range s.builds {
		if b.state == remote.Held {
			s.builds[key] = b.cooling(interval, b.failures)
		}
	}
}

// end replaces the lease of nonce; false if it is not held.
func (s *solo) end(key string, nonce uint64, by func(b build, now time.Duration) build) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.builds[key]
	if b.state != remote.Held || b.nonce != nonce {
		return false
	}
	s.put(key, by(b, s.now()), s.now())
	return true
}

// cooling is what a lease leaves behind of its interval.
func (b build) cooling(interval time.Duration, failures int) build {
	return build{state: remote.Cooling, granted: b.granted, failures: failures, until: b.granted + interval}
}

// put sets a build key. mu must be held.
func (s *solo) put(key string, b build, now time.Duration) {
	if s.builds == nil {
		s.builds = map[string]build{}
	}
	sweep(s.builds, func(other build) bool { return other.state != remote.Held && now >= other.until })
	s.builds[key] = b
}
