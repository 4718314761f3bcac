package herdgate_test

import (
	"errors"
	"net"
	"net/rpc"
	"sync"
	"testing"
	"time"
)

// fleetKey is the one key that the fleet wants.
const fleetKey = "k"

// fleetPatience is how long a test waits for what must come. It is no measure of what
// it waits for.
const fleetPatience = 20 * time.Second

// Item is what the source holds and the fleet caches.
type Item struct {
	Load    int   // number of the load that read it, from 1
	Version int   // of the source when that load began
	At      int64 // when that load ended, in µs since the epoch
}

// source is what the fleet loads from. It lives in the test's process, so that the
// loads of all processes are counted, and held back, in one place.
type source struct {
	addr  string
	delay time.Duration    // of a load; 0: until the test answers it
	begun chan *sourceLoad // the loads that the test is to answer
	quit  <-chan struct{}

	mu      sync.Mutex // protects the fields below
	freed   bool       // loads end at once
	version int
	loads   []*sourceLoad
	perKey  map[string]int // loads by LoadMany
}

// sourceLoad is one call of a loader, somewhere in the fleet.
type sourceLoad struct {
	Item

	s      *source
	by     string // name of the instance
	began  time.Time
	result chan error
}

// newSource returns a source whose loads take delay.
func newSource(t *testing.T, delay time.Duration) *source {
	t.Helper()
	s := &source{
		delay: delay, begun: make(chan *sourceLoad, 1024),
		quit: t.Context().Done(), version: 1,
	}
	s.addr = serveSource(t, s)
	return s
}

// newHeldSource returns a source whose loads end when the test answers them.
func newHeldSource(t *testing.T) *source {
	t.Helper()
	return newSource(t, 0)
}

func serveSource(t *testing.T, s *source) (addr string) {
	t.Helper()
	server := rpc.NewServer()
	if err := server.RegisterName("Source", s); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conns.Go(func() { server.ServeConn(conn) })
		}
	})
	t.Cleanup(func() { // the instances, started later, are gone by now, and so are their connections
		_ = listener.Close()
		conns.Wait()
	})
	return listener.Addr().String()
}

// Load is called by the loaders of the instances. What it returns was read when it
// began, as from a database under a snapshot.
func (s *source) Load(by string, item *Item) error {
	l := s.begin(by)
	if s.delay > 0 {
		defer time.AfterFunc(s.delay, l.answer).Stop()
	} else if !s.holds(l) {
		l.answer()
	}
	select {
	case err := <-l.result:
		*item = l.Item
		return err
	case <-s.quit:
		return errors.New("the test is over")
	}
}

func (s *source) begin(by string) *sourceLoad {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := &sourceLoad{s: s, by: by, began: time.Now(), result: make(chan error, 1), Item: Item{Load: len(s.loads) + 1, Version: s.version}}
	s.loads = append(s.loads, l)
	return l
}

// answer ends a load.
func (l *sourceLoad) answer() {
	l.s.mu.Lock()
	l.At = time.Now().UnixMicro()
	l.s.mu.Unlock()
	l.result <- nil
}

func (l *sourceLoad) fail(reason string) { l.result <- errors.New(reason) }

// holds reports whether the test is to answer a load.
func (s *source) holds(l *sourceLoad) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.freed {
		s.begun <- l
	}
	return !s.freed
}

// free ends the loads at once that begin from now on, and those that the test has not
// taken.
func (s *source) free() {
	s.mu.Lock()
	s.freed = true
	s.mu.Unlock()
	for {
		select {
		case l := <-s.begun:
			l.answer()
		default:
			return
		}
	}
}

// update changes the source: loads that begin from now on read version.
func (s *source) update(version int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version = version
}

// count returns how many loads have begun.
func (s *source) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.loads)
}

// load returns the load of that number, which has begun.
func (s *source) load(number int) *sourceLoad {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loads[number-1]
}

// next waits until a load begins that is held for the test.
func (s *source) next(t *testing.T) *sourceLoad {
	t.Helper()
	timer := time.NewTimer(fleetPatience)
	defer timer.Stop()
	select {
	case l := <-s.begun:
		return l
	case <-timer.C:
		t.Fatalf("no load began in %v", fleetPatience)
		return nil
	}
}

func (s *source) wantLoads(t *testing.T, want int) {
	t.Helper()
	if n := s.count(); n != want {
		t.Errorf("%d loads in the fleet, want %d", n, want)
	}
}
