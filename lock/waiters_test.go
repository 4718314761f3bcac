package lock_test

import (
	"testing"

	"github.com/herdgate/herdgate/lock"
)

func TestOnlyThoseWhoWaitForANameAreWoken(t *testing.T) {
	var waiters lock.Waiters
	waiters.Wake("a") // nobody waits
	first, stopFirst := waiters.Add("a")
	second, stopSecond := waiters.Add("a")
	other, stopOther := waiters.Add("b")
	woken := func() (n int) {
		for _, released := range []<-chan struct{}{first, second, other} {
			select {
			case <-released:
				n++
			default:
			}
		}
		return n
	}
	waiters.Wake("a")
	waiters.Wake("a") // not read yet: one stands for both
	if n := woken(); n != 2 {
		t.Errorf("%d were woken for a, want 2", n)
	}
	waiters.WakeAll()
	if n := woken(); n != 3 {
		t.Errorf("%d were woken of all, want 3", n)
	}
	stopFirst()
	waiters.Wake("a")
	if n := woken(); n != 1 {
		t.Errorf("%d were woken after one had left, want 1", n)
	}
	stopSecond()
	stopOther()
	waiters.WakeAll()
	if n := woken(); n != 0 {
		t.Errorf("%d were woken after all had left, want 0", n)
	}
}

func TestEveryEventKindHasAName(t *testing.T) {
	names := make(map[string]bool)
	for kind := lock.Acquired; kind <= lock.ReleaseUnknown; kind++ {
		names[kind.String()] = true
	}
	unknown := lock.EventKind(0).String()
	if len(names) != int(lock.ReleaseUnknown) || names[unknown] {
		t.Errorf("the names are %v, want one for each kind and none that is %q", names, unknown)
	}
}
