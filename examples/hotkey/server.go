package main

import (
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// clockStep is how often the embedded server's clock moves.
const clockStep = 2 * time.Millisecond

// server is the embedded Redis.
type server struct {
	redis *miniredis.Miniredis
	quit  chan struct{}
	clock sync.WaitGroup
}

// startServer starts it on a free port of the loopback interface. Its clock moves
// in steps, since it looks at all keys each time the clock has moved; at each
// command that would cost more than the commands themselves.
func startServer() (*server, error) {
	s := &server{redis: miniredis.NewMiniRedis(), quit: make(chan struct{})}
	if err := s.redis.StartAddr("127.0.0.1:0"); err != nil {
		return nil, err
	}
	s.redis.SetTime(time.Now())
	s.redis.ClockTTL(true)
	s.clock.Go(func() {
		step := time.NewTicker(clockStep)
		defer step.Stop()
		for {
			select {
			case now := <-step.C:
				s.redis.SetTime(now)
			case <-s.quit:
				return
			}
		}
	})
	return s, nil
}

func (s *server) addr() string { return s.redis.Addr() }

func (s *server) close() {
	close(s.quit)
	s.clock.Wait()
	s.redis.Close()
}
