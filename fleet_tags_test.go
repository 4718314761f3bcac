package herdgate_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/internal/testutil"
)

func TestAValueFromBeforeAClearOrATagsInvalidationComesBackNowhereInAFleet(t *testing.T) { // I2
	t.Parallel()
	for _, change := range []string{"clear", "tags"} {
		for _, stubborn := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, loader ignores its context %v", change, stubborn), func(t *testing.T) {
				t.Parallel()
				source := newHeldSource(t)
				f := newFleet(t, source)
				policy := herdgate.Policy{TTL: time.Hour, LocalTTL: time.Hour, LockTTL: time.Minute, Tags: []string{"all"}}
				f.start(instanceSetup{Name: "loading", Policy: policy, Stubborn: stubborn})
				f.start(instanceSetup{Name: "changing", Policy: policy})
				f.start(instanceSetup{Name: "waiting", Policy: policy})
				policy.LocalTTL = herdgate.Off
				f.start(instanceSetup{Name: "reading Redis", Policy: policy})
				loading, changing, waiting := f.instances[0], f.instances[1], f.instances[2]

				loading.begin(t, 1)
				before := source.next(t)
				waiting.begin(t, 1)
				waiting.until(t, "it waits", func(s herdgate.Stats) bool { return s.LeasesHeld == 1 })
				source.update(2)
				changing.change(t, Change{Op: change})
				if change == "clear" {
					loading.until(t, "it hears of the change", func(s herdgate.Stats) bool { return s.LeasesRevoked == 1 })
				}
				source.free()
				before.answer()

				wantVersion(t, changing, changing.get(t, 1), 2)
				for _, in := range f.instances {
					testutil.Eventually(t, fleetPatience, func() bool { return in.get(t, 1).hasVersion(2) }, "instance "+in.name+" reads version 2")
				}
				f.wantVersionToStay(2)
			})
		}
	}
}
