package remote

import (
	"sync"
	"time"
)

// clock estimates the server's time from replies that carried it, over this
// process's monotonic clock: a jump of the wall clock here changes nothing.
type clock struct {
	start time.Time // a reading with a monotonic part; what all durations count from

	mu      sync.Mutex // protects the fields below
	known   bool
	offset  time.Duration // server time since the epoch − monotonic time since start
	margin  time.Duration // half the round trip the offset was learned in
	learned time.Duration // when, monotonic
}

const (
	// maxOffsetAge is how long an offset is trusted without a newer sample: at the
	// 500 ppm a disciplined clock may slew, a minute is worth 30 ms.
	maxOffsetAge = time.Minute
	// betterFor is how long a sample with a tighter margin is preferred to a newer one.
	betterFor = 5 * time.Second
)

func (c *clock) mono() time.Duration { return time.Since(c.start) }

// observe takes one sample: the server's time in µs, read between sent and now. It
// returns the server's time now, by this sample.
func (c *clock) observe(micros int64, sent time.Duration) time.Duration {
	now := c.mono()
	margin := (now - sent) / 2
	offset := time.Duration(micros)*time.Microsecond - (sent + margin)
	c.mu.Lock()
	defer c.mu.Unlock()
	// A sample that contradicts tells of a clock that was set, or of another server.
	contradicts := (offset - c.offset).Abs() > margin+c.margin
	if !c.known || margin <= c.margin || contradicts || now-c.learned >= betterFor {
		c.known, c.offset, c.margin, c.learned = true, offset, margin, now
	}
	return now + offset
}

// now is the server's time since the epoch, false while nothing recent is known.
func (c *clock) now() (time.Duration, bool) { return c.at(c.mono()) }

// at is now for a monotonic time.
func (c *clock) at(mono time.Duration) (time.Duration, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.known || mono-c.learned > maxOffsetAge {
		return 0, false
	}
	return mono + c.offset, true
}

// slack is how far the estimate may be off.
func (c *clock) slack() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.margin
}

// CountFrom sets when the monotonic time of the store was 0, so that its durations are
// those of others. start must have a monotonic reading. Call it before the first command.
func (s *Store) CountFrom(start time.Time) {
	s.start = start
	s.forgetClocks()
}

// SetWall sets the wall clock, for tests. Call it before Listen.
func (s *Store) SetWall(now func() time.Time) { s.wall = now }

// apart is how far the wall clock has moved from the monotonic one since the store was
// made. It changes when the wall clock is set, and when the machine has slept.
func (s *Store) apart() time.Duration {
	return s.wall().Round(0).Sub(s.start.Round(0)) - s.mono()
}
