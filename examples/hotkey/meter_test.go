package main

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestOnlyTheMeasuredTimeIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m meter
		hook := redisHook{meter: &m, namespace: "ns"}
		get := redis.NewStringCmd(t.Context(), "get", "k")
		act := func() {
			m.query(hotKey)
			m.query("2")
			hook.count(get)
		}
		act()
		m.start(time.Now().Add(time.Second), 2*slotWidth)
		act()
		time.Sleep(time.Second)
		act()
		time.Sleep(slotWidth)
		act()
		if m.over() {
			t.Error("it is over too early")
		}
		time.Sleep(slotWidth)
		act()
		if !m.over() {
			t.Error("it is not over")
		}
		all, hot := m.queries()
		if len(all) != 2 || all[0] != 2 || all[1] != 2 || len(hot) != 2 || hot[0] != 1 || hot[1] != 1 || m.redisCalls.Load() != 2 {
			t.Errorf("counted %v and %v queries, %d commands", all, hot, m.redisCalls.Load())
		}
	})
}

func TestCommandsThatNoReadCausesAreNotCounted(t *testing.T) {
	hook := redisHook{namespace: "ns"}
	for _, test := range []struct {
		args   []any
		caused bool
	}{
		{[]any{"get", "k"}, true},
		{[]any{"evalsha", "x", 0}, true},
		{[]any{"publish", "ns:bus", "m"}, true},
		{[]any{"publish", "ns:0123", "H"}, false},
		{[]any{"hello", 3}, false},
		{[]any{"client", "setinfo", "x"}, false},
		{[]any{"subscribe", "ns:bus"}, false},
		{[]any{"script", "load", "x"}, false},
	} {
		if got := hook.caused(redis.NewCmd(t.Context(), test.args...)); got != test.caused {
			t.Errorf("%v: counted is %v", test.args, got)
		}
	}
}
