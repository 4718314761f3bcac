// Package embedded is a Redis inside the program, for examples that are to need nothing but Go.
package embedded

import (
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// clockStep is how often the embedded server's clock moves.
const clockStep = 2 * time.Millisecond

// Redis is a server on a free port of the loopback interface. Make it with StartRedis.
type Redis struct {
	server *miniredis.Miniredis
	quit   chan struct{}
	clock  sync.WaitGroup
}

// StartRedis starts the server. Its clock moves in steps, since it looks at all keys each time the
// clock has moved; at each command that would cost more than the commands themselves.
func StartRedis() (*Redis, error) {
	s := &Redis{server: miniredis.NewMiniRedis(), quit: make(chan struct{})}
	if err := s.server.StartAddr("127.0.0.1:0"); err != nil {
		return nil, err
	}
	s.server.SetTime(time.Now())
	s.server.ClockTTL(true)
	s.clock.Go(func() {
		step := time.NewTicker(clockStep)
		defer step.Stop()
		for {
			select {
			case now := <-step.C:
				s.server.SetTime(now)
			case <-s.quit:
				return
			}
		}
	})
	return s, nil
}

// Addr is its host:port.
func (s *Redis) Addr() string { return s.server.Addr() }

// Close ends the server.
func (s *Redis) Close() {
	close(s.quit)
	s.clock.Wait()
	s.server.Close()
}
