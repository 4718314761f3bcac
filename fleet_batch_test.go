package herdgate_test

import (
	"context"
	"errors"
	"fmt"
	"net/rpc"
	"slices"
	"testing"
	"time"

	"github.com/herdgate/herdgate"
)

// LoadMany is called by the loaders of instances that load many keys in one call.
func (s *source) LoadMany(keys []string, items *map[string]Item) error {
	s.mu.Lock()
	if s.perKey == nil {
		s.perKey = map[string]int{}
	}
	*items = map[string]Item{}
	for _, key := range keys {
		s.perKey[key]++
		(*items)[key] = Item{Load: s.perKey[key], Version: s.version}
	}
	s.mu.Unlock()
	timer := time.NewTimer(s.delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-s.quit:
		return errors.New("the test is over")
	}
}

// loadMany is the loader of an instance for many keys.
func (s *service) loadMany(ctx context.Context, keys []string) (map[string]Item, error) {
	items := map[string]Item{}
	call := s.source.Go("Source.LoadMany", keys, &items, make(chan *rpc.Call, 1))
	select {
	case <-call.Done:
		return items, call.Error
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// ManyAnswers are what GetMany returned.
type ManyAnswers struct {
	Values map[string]Item
	Error  string
}

// GetMany calls GetMany.
func (s *service) GetMany(keys []string, a *ManyAnswers) error {
	values, err := s.cache.GetMany(s.ctx, keys)
	a.Values = values
	if err != nil {
		a.Error = err.Error()
	}
	return nil
}

func TestAFleetLoadsEachKeyOfOverlappingBatchesOnce(t *testing.T) { // I1
	t.Parallel()
	const instances, size, step = 8, 100, 20
	for name, changed := range map[string]bool{"cold": false, "after changes": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source := newSource(t, 200*time.Millisecond)
			f := newFleet(t, source)
			// A machine that is busy with so many processes is no lease that was lost.
			policy := herdgate.Policy{LockTTL: 20 * time.Second, WaitTimeout: fleetPatience}
			for i := range instances {
				f.start(instanceSetup{Name: fmt.Sprint(i), Policy: policy, Many: true})
			}
			all := numbered(0, size+step*(instances-1))
			want := 1
			round := func() {
				t.Helper()
				var each []*pending[ManyAnswers]
				for i, in := range f.instances {
					keys := slices.Clone(all[step*i : step*i+size])
					if i%2 == 1 {
						slices.Reverse(keys)
					}
					each = append(each, ask[ManyAnswers](t, in, "GetMany", keys))
				}
				for _, one := range each {
					a := one.wait(t)
					if a.Error != "" || len(a.Values) != size {
						t.Errorf("instance %s got %d values, %s", one.in.name, len(a.Values), a.Error)
					}
					for key, item := range a.Values {
						if item.Load != want {
							t.Errorf("instance %s got load %d of %s", one.in.name, item.Load, key)
						}
					}
				}
			}
			round()
			if changed {
				ask[struct{}](t, f.instances[0], "DeleteMany", all).wait(t)
				want = 2
				for _, in := range f.instances { // every instance has heard of it
					in.until(t, "hears of the changes", func(herdgate.Stats) bool {
						return ask[int](t, in, "Stored", all).wait(t) == 0
					})
				}
				round()
			}
			source.mu.Lock()
			defer source.mu.Unlock()
			for _, key := range all {
				if n := source.perKey[key]; n != want {
					t.Errorf("%d loads of %s, want %d", n, key, want)
				}
			}
		})
	}
}

// DeleteMany deletes keys.
func (s *service) DeleteMany(keys []string, _ *struct{}) error { return s.cache.Delete(s.ctx, keys...) }

// Stored returns how many keys are there in this instance or in Redis.
func (s *service) Stored(keys []string, n *int) error {
	for _, key := range keys {
		if _, found, err := s.cache.Peek(s.ctx, key); err != nil {
			return err
		} else if found {
			*n++
		}
	}
	return nil
}
