package rig

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestAServerIsKilledAndComesBackEmptyAtItsAddress(t *testing.T) {
	s, err := StartServer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	rdb := s.Client()
	defer func() { _ = rdb.Close() }()
	if err := rdb.Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	addr := s.Addr()
	s.Kill()
	if err := rdb.Ping(t.Context()).Err(); err == nil {
		t.Error("a killed server answers")
	}
	if err := s.Restart(t.Context()); err != nil || s.Addr() != addr {
		t.Fatalf("restarted at %s: %v, want %s", s.Addr(), err, addr)
	}
	if err := rdb.Get(t.Context(), "k").Err(); !errors.Is(err, redis.Nil) {
		t.Errorf("a restarted server gives %v for a key, want that there is none", err)
	}
	before, err := s.Commands(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	script := redis.NewScript(`redis.call('GET', KEYS[1]); return redis.call('SET', KEYS[1], 'v')`)
	if err := script.Run(t.Context(), rdb, []string{"k"}).Err(); err != nil {
		t.Fatal(err)
	}
	// An EVALSHA that finds no script is run, too, and then an EVAL.
	if after, err := s.Commands(t.Context()); err != nil || after-before != 4 {
		t.Errorf("a script of two commands counts %d (%v), want 4", after-before, err)
	}
}

func TestAWorkerAnswersFailsAndDies(t *testing.T) {
	w, err := Spawn(t.Context(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if n, err := Call[int](t.Context(), w, "double", 21); n != 42 || err != nil {
		t.Errorf("it answers %d, %v", n, err)
	}
	if _, err := Call[int](t.Context(), w, "fail", 1); err == nil || !strings.Contains(err.Error(), "no luck today") {
		t.Errorf("its failure is %v", err)
	}
	if _, err := Call[int](t.Context(), w, "typo", 1); err == nil || !strings.Contains(err.Error(), `"typo"`) {
		t.Errorf("an operation that there is not gives %v", err)
	}
	pending := Begin[int](w, "wait", 1)
	w.Kill()
	if _, err := pending.Wait(t.Context()); err == nil {
		t.Error("a call of a killed worker is answered")
	}
}

func TestASimulationReturnsItsResultOrWhyThereIsNone(t *testing.T) {
	if got, err := Simulate[map[string]int](t.Context(), "echo", map[string]int{"n": 8}); err != nil || got["n"] != 8 {
		t.Errorf("it returns %v, %v", got, err)
	}
	for name, want := range map[string]string{"fail": "no luck today", "typo": `no simulation "typo"`} {
		if _, err := Simulate[int](t.Context(), name, 0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the simulation %s returns %v, want %s", name, err, want)
		}
	}
}

func TestLatenciesSurviveTheWayToTheParent(t *testing.T) {
	l := NewLatency()
	for i := range 1000 {
		l.Record(time.Duration(i+1) * time.Microsecond)
	}
	encoded, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	got := NewLatency()
	if err := json.Unmarshal(encoded, got); err != nil {
		t.Fatal(err)
	}
	got.Add(l)
	if got.Count() != 2000 {
		t.Errorf("%d durations, want 2000", got.Count())
	}
	for q, want := range map[float64]time.Duration{0.5: 500 * time.Microsecond, 0.99: 990 * time.Microsecond, 1: time.Millisecond} {
		if v := got.Quantile(q); v < want || v > want+want/500 {
			t.Errorf("the quantile %v is %v, want %v", q, v, want)
		}
	}
	l.Record(0)
	l.Record(time.Hour)
	if l.Max() < 9*time.Minute {
		t.Errorf("an hour counts as %v", l.Max())
	}
}

func TestCommandsThatNoRequestCausesAreNotCounted(t *testing.T) {
	for words, want := range map[string]Counts{
		"get bench:v:product:{1}":             {Calls: 1, RoundTrips: 1},
		"evalsha abc 2 k b":                   {Calls: 1, RoundTrips: 1},
		"publish bench:bus x":                 {Calls: 1, RoundTrips: 1},
		"get bench:g:product":                 {Heartbeats: 1},
		"evalsha abc 1 bench:g:product read":  {Heartbeats: 1},
		"evalsha abc 1 bench:g:product clear": {Calls: 1, RoundTrips: 1},
		"publish bench:0123456789abcd H":      {Heartbeats: 1},
		"hello 3":                             {},
		"client setinfo":                      {},
		"subscribe bench:bus":                 {},
		"script load x":                       {},
	} {
		var args []any
		for word := range strings.FieldsSeq(words) {
			args = append(args, word)
		}
		var c Commands
		c.sent([]redis.Cmder{redis.NewCmd(t.Context(), args...)})
		if got := c.Counts(); got != want {
			t.Errorf("%q counts as %+v, want %+v", words, got, want)
		}
	}
}

func TestCommandsAreWellSinceTheFirstSuccessAfterTheLastFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Commands
		get := []redis.Cmder{redis.NewCmd(t.Context(), "get", "k")}
		start := time.Now()
		for _, err := range []error{nil, io.EOF, redis.Nil, nil} { // no value is an answer
			time.Sleep(time.Second)
			c.answered(get, err)
		}
		if got := c.WellSince().Sub(start); got != 3*time.Second {
			t.Errorf("well since %v, want 3s", got)
		}
		c.answered(get, io.EOF)
		if !c.WellSince().IsZero() {
			t.Error("well although the last command failed")
		}
	})
}

func TestALinkTakesTheServersTimeForRequestsInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLink(true)
		l.Record()
		start := time.Now()
		for range 3 {
			l.enter([]redis.Cmder{redis.NewCmd(t.Context(), "get", "k")})
		}
		done := l.enter([]redis.Cmder{redis.NewCmd(t.Context(), "evalsha", "x")}).Sub(start)
		if want := l.oneWay + 4*l.request + l.script; done != want {
			t.Errorf("three GETs and a script are done after %v, want %v", done, want)
		}
		time.Sleep(50 * time.Millisecond)
		l.enter([]redis.Cmder{redis.NewCmd(t.Context(), "get", "k")})
		if got := l.Burst(100 * time.Millisecond); got != 5 {
			t.Errorf("the burst is %d, want 5", got)
		}
		time.Sleep(60 * time.Millisecond)
		l.enter([]redis.Cmder{redis.NewCmd(t.Context(), "get", "k")})
		if got := l.Burst(100 * time.Millisecond); got != 5 {
			t.Errorf("the burst is %d, want 5: the first four are longer ago", got)
		}
	})
}

func TestCallsThatAreUnderWayTogetherAreOneRoundTrip(t *testing.T) {
	var c Commands
	get := []redis.Cmder{redis.NewCmd(t.Context(), "get", "k")}
	c.sent(get)
	c.sent(get)
	c.answered(get, nil)
	c.answered(get, nil)
	c.sent(get)
	c.answered(get, nil)
	if got, want := c.Counts(), (Counts{Calls: 3, RoundTrips: 2}); got != want {
		t.Errorf("two calls at once and one after them count as %+v, want %+v", got, want)
	}
}
