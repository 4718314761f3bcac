package testutil

import "testing"

func TestSentinelsMakeAnotherMaster(t *testing.T) {
	t.Parallel()
	s := StartSentinel(t)
	c := s.Client(t)
	first := s.Master()
	if err := c.Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	s.Failover()
	second := s.Master()
	if first == second {
		t.Fatalf("the master is still %s", first.Addr())
	}
	Eventually(t, failoverTime, func() bool { return c.Set(t.Context(), "k", "w", 0).Err() == nil }, "the client finds it")
	if got, err := second.Client(t).Get(t.Context(), "k").Result(); err != nil || got != "w" {
		t.Errorf("the new master has %q, %v", got, err)
	}
}
