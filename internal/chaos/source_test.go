package chaos

import (
	"fmt"
	"net"
	"net/rpc"
	"sync"
	"testing"
	"time"
)

// source is the database: a version of each key, in the test's process, so that it is
// there whatever becomes of the others.
type source struct {
	start time.Time
	addr  string

	mu       sync.Mutex // protects the fields below
	versions [keys]int64
	intents  []Intent
	begun    int // processes
}

func startSource(t *testing.T) *source {
	t.Helper()
	s := &source{start: time.Now()}
	for k := range s.versions {
		s.versions[k] = 1
	}
	server := rpc.NewServer()
	if err := server.RegisterName("Source", &sourceAPI{s}); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = listener.Addr().String()
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
	t.Cleanup(func() { // the processes, started later, are gone by now, and so are their connections
		_ = listener.Close()
		conns.Wait()
	})
	return s
}

func (s *source) now() moment { return moment(time.Since(s.start)) }

// sourceAPI is what processes may ask of the source.
type sourceAPI struct{ s *source }

// Read returns the version of a key.
func (a *sourceAPI) Read(key int, version *int64) error {
	s := a.s
	s.mu.Lock()
	defer s.mu.Unlock()
	*version = s.versions[key]
	return nil
}

// Change is called before a change of the cache: it changes the source, and notes who is
// about to do what.
func (a *sourceAPI) Change(i Intent, noted *Intent) error {
	s := a.s
	s.mu.Lock()
	defer s.mu.Unlock()
	switch i.Op {
	case opDelete, opSet, opExpire:
		s.versions[i.Key]++
	case opWhole:
		from, to := cacheOf(i.Key)
		for k := from; k < to; k++ {
			s.versions[k]++
		}
	default:
		return fmt.Errorf("%s is no change", i.Op)
	}
	i.ID, i.At, i.Versions = int64(len(s.intents))+1, s.now(), s.versions
	s.intents = append(s.intents, i)
	*noted = i
	return nil
}

// Begin is called by a process that is about to begin.
func (a *sourceAPI) Begin(_ int, _ *bool) error {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	a.s.begun++
	return nil
}

func (s *source) beginners() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.begun
}

func (s *source) noted() []Intent {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.intents
}
