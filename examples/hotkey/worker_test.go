package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/examples/internal/embedded"
)

func TestAnInstanceEndsWhenItsParentIsGone(t *testing.T) {
	for _, phase := range []string{aside, gated} {
		t.Run(phase, func(t *testing.T) {
			j := testJob(t, phase)
			in, parent := io.Pipe()
			out := writerFunc(func(line []byte) {
				var m message
				if err := json.Unmarshal(line, &m); err == nil && m.Ready {
					_ = parent.Close()
				}
			})
			go func() { _ = json.NewEncoder(parent).Encode(j) }() // ends when work has read it
			if err := work(t.Context(), in, out); !errors.Is(err, context.Canceled) {
				t.Errorf("it ended with %v", err)
			}
		})
	}
}

func TestBothReadersGiveTheProductAndKeepIt(t *testing.T) {
	for _, phase := range []string{aside, gated} {
		t.Run(phase, func(t *testing.T) {
			j := testJob(t, phase)
			var m meter
			m.start(time.Now(), time.Hour)
			db, err := openDatabase(j, &m)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = db.pool.Close() }()
			rdb := redis.NewClient(&redis.Options{Addr: j.Redis})
			defer func() { _ = rdb.Close() }()
			r, end, err := newReader(t.Context(), j, rdb, db, nil)
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				p, err := r.Get(t.Context(), "42")
				if err != nil || p.ID != 42 || p.Name != "Product 42" || p.PriceCents != 142 || p.LoadedAt == 0 {
					t.Errorf("got %+v, %v", p, err)
				}
			}
			if _, err := r.Get(t.Context(), "10001"); !errors.Is(err, herdgate.ErrNotFound) {
				t.Errorf("a product that does not exist gives %v", err)
			}
			if err := end(t.Context()); err != nil {
				t.Error(err)
			}
			if all, _ := m.queries(); total(all) != 2 {
				t.Errorf("there were %d queries for two products", total(all))
			}
		})
	}
}

// testJob is a job in a world of its own.
func testJob(t *testing.T, phase string) job {
	t.Helper()
	s, err := embedded.StartRedis()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	file := filepath.Join(t.TempDir(), "with space?.db")
	for range 2 { // the second finds the table there
		if err := prepare(t.Context(), file); err != nil {
			t.Fatal(err)
		}
	}
	return job{
		Phase: phase, Redis: s.Addr(), DB: file, Namespace: "test", Instances: 1, Callers: 2,
		TTL: time.Minute, Load: time.Millisecond, Duration: time.Minute,
	}
}

type writerFunc func([]byte)

func (f writerFunc) Write(p []byte) (int, error) {
	f(p)
	return len(p), nil
}
