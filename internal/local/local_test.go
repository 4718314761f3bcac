package local

import (
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

const mib = 1 << 20

func newTier(tb testing.TB, bytes int64) *Tier {
	tb.Helper()
	t, err := New(Limits{Bytes: bytes})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(t.Close)
	return t
}

// ask loads as a cache does: the policy is told of a sample.
func ask[C any](m *Map[C], key string) *C {
	if rand.Uint32()%16 == 0 {
		m.Touch(key)
	}
	return m.Load(key)
}

// settle returns once the policy has digested everything stored so far, and
// checks that the tier, its maps and the policy agree on what is there.
func settle[C any](tb testing.TB, t *Tier, maps ...*Map[C]) {
	tb.Helper()
	t.policy.Wait()
	var bytes, entries int64
	for _, m := range maps {
		var own int64
		m.index.all(func(s *slot[C]) {
			if s.evicted {
				tb.Errorf("%q is evicted and still in the index", s.key)
			}
			if s.content.Load() != nil {
				own++
			}
			bytes += s.cost
		})
		if int64(m.Len()) != own {
			tb.Errorf("Len = %d, want %d", m.Len(), own)
		}
		entries += own
	}
	if s := t.Stats(); s.Bytes != bytes || s.Entries != entries {
		tb.Errorf("Stats are %d bytes and %d entries, want %d and %d", s.Bytes, s.Entries, bytes, entries)
	}
	if used := t.policy.MaxCost() - t.policy.RemainingCost(); used != bytes {
		tb.Errorf("the policy reckons with %d bytes, the indexes with %d", used, bytes)
	}
}

func TestLimitsOutOfRangeAreRefused(t *testing.T) {
	for _, bytes := range []int64{0, -1, maxBytes + 1} {
		tier, err := New(Limits{Bytes: bytes})
		if err == nil {
			tier.Close()
			t.Errorf("New with %d bytes succeeded", bytes)
			continue
		}
		for _, part := range []string{"Limits.Bytes", strconv.FormatInt(bytes, 10), "from 1 to"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("the error %q does not contain %q", err, part)
			}
		}
	}
}

func TestLoadSeesTheNewestContentAtOnce(t *testing.T) {
	tier := newTier(t, 64*mib)
	m := NewMap[int](tier)
	for i := range 10_000 {
		key := strconv.Itoa(i)
		m.Store(key, new(1), 8)
		m.Store(key, new(2), 8)
		if v := m.Load(key); v == nil || *v != 2 {
			t.Fatalf("%s: Load = %v, want 2", key, v)
		}
	}
	settle(t, tier, m)
	if m.Len() != 10_000 {
		t.Errorf("%d entries stayed, want all 10000", m.Len())
	}
	for i := range 10_000 {
		if v := m.Load(strconv.Itoa(i)); v == nil || *v != 2 {
			t.Fatalf("%d: once digested Load = %v, want 2", i, v)
		}
	}
}

func TestLoadOfAnUnknownKeyIsNil(t *testing.T) {
	m := NewMap[int](newTier(t, mib))
	if v := m.Load("key"); v != nil {
		t.Errorf("Load = %v, want nil", v)
	}
	m.Delete("key")
	if n := m.Len(); n != 0 {
		t.Errorf("Len = %d, want 0", n)
	}
}

func TestMapsOfOneTierDoNotShareEntries(t *testing.T) {
	tier := newTier(t, mib)
	a, b := NewMap[int](tier), NewMap[int](tier)
	a.Store("key", new(1), 8)
	b.Store("key", new(2), 8)
	settle(t, tier, a, b)
	a.Delete("key")
	if v := b.Load("key"); v == nil || *v != 2 || a.Load("key") != nil {
		t.Errorf("b has %v and a has %v, want 2 and nil", v, a.Load("key"))
	}
}

func TestDeleteIsSeenAtOnceAndGivesTheSpaceBack(t *testing.T) {
	tier := newTier(t, mib)
	m := NewMap[int](tier)
	m.Store("key", new(1), 100_000)
	settle(t, tier, m)
	m.Delete("key")
	if v := m.Load("key"); v != nil || m.Len() != 0 {
		t.Errorf("after Delete Load = %v and Len = %d, want nil and 0", v, m.Len())
	}
	settle(t, tier, m)
	if b := tier.Stats().Bytes; b > perEntry+10 {
		t.Errorf("%d bytes are still in use", b)
	}
}

func TestStoreRightAfterDeleteStays(t *testing.T) {
	tests := map[string]func(*Tier){
		"while the first is waiting for its admission": func(*Tier) {},
		"when the first was admitted":                  func(t *Tier) { t.policy.Wait() },
	}
	for name, between := range tests {
		tier := newTier(t, 64*mib)
		m := NewMap[int](tier)
		for i := range 1_000 {
			key := strconv.Itoa(i)
			m.Store(key, new(1), 8)
			between(tier)
			m.Delete(key)
			m.Store(key, new(2), 16)
			if v := m.Load(key); v == nil || *v != 2 {
				t.Fatalf("%s: Load = %v, want 2", name, v)
			}
		}
		settle(t, tier, m)
		if m.Len() != 1_000 {
			t.Errorf("%s: %d entries stayed, want 1000", name, m.Len())
		}
	}
}

func TestPolicyReckonsWithTheNewestCost(t *testing.T) {
	tier := newTier(t, 64*mib)
	m := NewMap[int](tier)
	for i := range 1_000 { // while the slot waits for its admission
		m.Store(strconv.Itoa(i), new(1), 8)
		m.Store(strconv.Itoa(i), new(1), 800)
	}
	settle(t, tier, m)
	for i := range 1_000 { // once it was admitted
		m.Store(strconv.Itoa(i), new(1), int64(i))
	}
	settle(t, tier, m)
}

// The policy forgets a slot, then calls back; between the two the key may get a
// new slot, which the call must not remove.
func TestEvictionRemovesExactlyItsOwnSlot(t *testing.T) {
	m := NewMap[int](newTier(t, mib))
	m.Store("key", new(1), 8)
	old := m.index.find(m.hash("key"), "key")
	old.mu.Lock()
	old.evicted = true // the first half of evict
	old.mu.Unlock()
	m.Store("key", new(2), 8)
	m.index.remove(old) // the second half
	if v := m.Load("key"); v == nil || *v != 2 {
		t.Errorf("Load = %v, want 2", v)
	}
}

// A cost is told by a Set, which is a new entry to a policy that has just evicted
// the slot. It must not come to stay: it would be in nobody's index.
func TestEvictedSlotIsNotAdmittedAgain(t *testing.T) {
	tier := newTier(t, mib)
	m := NewMap[int](tier)
	m.Store("key", new(1), 8)
	tier.policy.Wait()
	old := m.index.find(m.hash("key"), "key")
	hash := m.hash("key")
	tier.policy.Del(hash)
	tier.policy.Wait()
	tier.policy.Set(hash, old, 0)
	old.evict()
	m.Store("key", new(2), 8)
	settle(t, tier, m)
	if v := m.Load("key"); v == nil || *v != 2 {
		t.Errorf("Load = %v, want 2", v)
	}
	if s := tier.Stats(); s.Evicted != 0 || s.Rejected != 0 {
		t.Errorf("%+v counts a slot that was out before", s)
	}
}

// What Set tells a policy that has not admitted the slot yet ends in a rejection.
func TestCostToldBeforeTheAdmissionIsNoRejection(t *testing.T) {
	tier := newTier(t, mib)
	m := NewMap[int](tier)
	m.Store("blocker", new(0), 8)
	settle(t, tier, m)
	blocker := m.index.find(m.hash("blocker"), "blocker")
	blocker.mu.Lock()
	tier.policy.Set(m.hash("blocker"), blocker, 0)
	m.Store("key", new(1), 8)
	waiting := m.index.find(m.hash("key"), "key")
	if !tier.policy.Set(m.hash("key"), waiting, 0) {
		t.Error("the buffer is full")
	}
	blocker.mu.Unlock()
	settle(t, tier, m)
	if v := m.Load("key"); v == nil || *v != 1 || tier.Stats().Rejected != 0 {
		t.Errorf("Load = %v and %+v, want 1 and no rejection", v, tier.Stats())
	}
}

func TestContentLargerThanTheBudgetIsNotStored(t *testing.T) {
	tier := newTier(t, mib)
	m := NewMap[int](tier)
	m.Store("kept", new(0), 8)
	for i, cost := range []int64{mib, mib + 1, 1 << 62} {
		key := strconv.Itoa(i)
		m.Store(key, new(1), cost)
		if m.Load(key) != nil {
			t.Errorf("a content of %d bytes was stored", cost)
		}
	}
	settle(t, tier, m)
	if s := tier.Stats(); s.Dropped != 3 || s.Evicted != 0 || m.Load("kept") == nil {
		t.Errorf("Stats = %+v, want 3 dropped and the small entry kept", s)
	}
}

func TestContentThatGrowsBeyondTheBudgetTakesTheOlderOneAway(t *testing.T) {
	tier := newTier(t, mib)
	m := NewMap[int](tier)
	m.Store("key", new(1), 8)
	settle(t, tier, m)
	m.Store("key", new(2), 4*mib)
	if v := m.Load("key"); v != nil {
		t.Errorf("Load = %v, want nil", *v)
	}
	settle(t, tier, m)
	m.Store("key", new(3), 8)
	if v := m.Load("key"); v == nil || *v != 3 {
		t.Errorf("Load = %v, want 3", v)
	}
	if s := tier.Stats(); s.Dropped != 1 {
		t.Errorf("Stats = %+v, want 1 dropped", s)
	}
}

func TestBurstOfStoresStaysWithinTheLimitAndIsCounted(t *testing.T) {
	const stores, workers = 100_000, 4
	tier := newTier(t, 4*mib)
	m := NewMap[int](tier)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := w; i < stores; i += workers {
				m.Store(strconv.Itoa(i), new(i), 100)
				// The others may be in the middle of a reservation they give back.
				if b := tier.Stats().Bytes; b > tier.limit+workers*(perEntry+200) {
					t.Errorf("%d bytes are in use, the limit is %d", b, tier.limit)
				}
			}
		})
	}
	wg.Wait()
	settle(t, tier, m)
	s := tier.Stats()
	if s.Bytes > 4*mib {
		t.Errorf("%d bytes stay in use, the budget is %d", s.Bytes, 4*mib)
	}
	if sum := uint64(s.Entries) + s.Dropped + s.Rejected + s.Evicted; sum != stores {
		t.Errorf("%+v add up to %d, want %d", s, sum, stores)
	}
}

func TestStoreThatFindsTheBufferFullLeavesNothing(t *testing.T) {
	const stores = 40_000 // ristretto's buffer takes 32 Ki
	tier := newTier(t, 256*mib)
	m := NewMap[int](tier)
	m.Store("key", new(0), 8)
	settle(t, tier, m)
	s := m.index.find(m.hash("key"), "key")
	s.mu.Lock() // holds up the policy, which asks this slot for its cost
	tier.policy.Set(m.hash("key"), s, 0)
	for i := range stores {
		m.Store(strconv.Itoa(i), new(i), 8)
	}
	s.mu.Unlock()
	settle(t, tier, m)
	stats := tier.Stats()
	if stats.Dropped == 0 || uint64(stats.Entries)+stats.Dropped != 1+stores || stats.Entries != int64(m.index.len()) {
		t.Errorf("Stats = %+v with %d slots, want some dropped and the others kept", stats, m.index.len())
	}
}

func TestHeapStaysFlatUnderChurn(t *testing.T) {
	const budget, churn = 4 * mib, 1_000_000
	tier := newTier(t, budget)
	m := NewMap[[100]byte](tier)
	var flat uint64
	for i := range churn {
		key := strconv.Itoa(i)
		m.Store(key, new([100]byte), 100)
		if i%4 == 0 {
			m.Delete(key)
		}
		if i == churn/5 {
			settle(t, tier, m)
			flat = heap()
		}
	}
	settle(t, tier, m)
	if end := heap(); end > flat+budget/4 {
		t.Errorf("the heap grew from %d to %d bytes", flat, end)
	}
	if b := tier.Stats().Bytes; b > budget {
		t.Errorf("%d bytes are in use, the budget is %d", b, budget)
	}
}

func TestPerEntryCoversTheBookkeeping(t *testing.T) {
	for _, entries := range []int{10_000, 60_000, 100_000} {
		tier := newTier(t, 256*mib)
		m := NewMap[int](tier)
		shared := new(1)
		before := heap()
		for i := range entries {
			m.Store("a key of some length "+strconv.Itoa(1e6+i), shared, 0)
			if i%10_000 == 0 {
				tier.policy.Wait()
			}
		}
		settle(t, tier, m)
		each := int64(heap()-before)/int64(entries) - 28
		t.Logf("%d entries: %d bytes each", entries, each)
		if m.Len() != entries || each > perEntry || each < perEntry/4 {
			t.Errorf("%d of %d entries take %d bytes each; perEntry says %d", m.Len(), entries, each, perEntry)
		}
		tier.Close()
	}
}

// heap returns the bytes that are in use on the heap.
func heap() uint64 {
	var s runtime.MemStats
	runtime.GC()
	runtime.GC() // empties the victims of sync.Pool too
	runtime.ReadMemStats(&s)
	return s.HeapAlloc
}

func TestKeyDoesNotKeepItsOriginInMemory(t *testing.T) {
	m := NewMap[int](newTier(t, 64*mib))
	before := heap()
	for i := range 16 {
		request := strings.Repeat("x", mib) + strconv.Itoa(i)
		m.Store(request[mib:], new(i), 8)
	}
	if grown := int64(heap()) - int64(before); grown > 4*mib {
		t.Errorf("the heap grew by %d bytes", grown)
	}
	runtime.KeepAlive(m)
}

func TestClosedTierIsEmptyAndStoresNothing(t *testing.T) {
	tier := newTier(t, mib)
	m := NewMap[int](tier)
	m.Store("admitted", new(1), 8)
	tier.policy.Wait()
	m.Store("waiting", new(2), 8)
	tier.Close()
	tier.Close()
	m.Store("late", new(3), 8)
	m.Delete("late")
	for _, key := range []string{"admitted", "waiting", "late"} {
		m.Touch(key)
		if v := m.Load(key); v != nil {
			t.Fatalf("%s: Load = %v, want nil", key, *v)
		}
	}
	if s := tier.Stats(); s.Bytes != 0 || s.Entries != 0 || m.index.len() != 0 {
		t.Errorf("Stats = %+v and the index has %d slots, want nothing left", s, m.index.len())
	}
}

func TestCloseUnderLoadLeavesNothingBehind(t *testing.T) {
	for range 20 {
		tier := newTier(t, mib)
		m := NewMap[int](tier)
		stop := make(chan struct{})
		var stored atomic.Int64
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					key := strconv.Itoa(w) + "/" + strconv.Itoa(i%500)
					m.Store(key, new(i), int64(i%2000))
					ask(m, key)
					if i%7 == 0 {
						m.Delete(key)
					}
					stored.Add(1)
				}
			})
		}
		for stored.Load() < 2_000 {
			runtime.Gosched()
		}
		wg.Go(tier.Close)
		tier.Close()
		close(stop)
		wg.Wait()
		if s := tier.Stats(); s.Bytes != 0 || s.Entries != 0 || m.Len() != 0 || m.index.len() != 0 {
			t.Errorf("Stats = %+v, Len = %d and the index has %d slots, want nothing left", s, m.Len(), m.index.len())
		}
	}
}

func TestTierLivesInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type content struct{ expires time.Time }
		tier := newTier(t, mib)
		m := NewMap[content](tier)
		for range 3 {
			m.Store("key", &content{time.Now().Add(time.Hour)}, 24)
			synctest.Wait()
			time.Sleep(time.Hour - 1)
			if c := m.Load("key"); c == nil || !time.Now().Before(c.expires) {
				t.Fatalf("Load = %v, want an unexpired content", c)
			}
			time.Sleep(time.Nanosecond)
			if c := m.Load("key"); c == nil || time.Now().Before(c.expires) {
				t.Fatalf("Load = %v, want the expired content: expiry is its finder's concern", c)
			}
			m.Delete("key")
		}
		settle(t, tier, m)
	})
}

func TestLoadDoesNotAllocate(t *testing.T) {
	m := NewMap[int](newTier(t, mib))
	m.Store("key", new(1), 8)
	for _, key := range []string{"key", "unknown"} {
		// 64 samples fill a buffer of the policy, which takes a new one: once in
		// 1024 loads, which the average rounds away.
		if n := testing.AllocsPerRun(20_000, func() { ask(m, key) }); n != 0 {
			t.Errorf("Load(%q) allocates %v times", key, n)
		}
	}
}

func TestStoreOfAnExistingKeyAllocatesNothing(t *testing.T) {
	m := NewMap[int](newTier(t, mib))
	c := new(1)
	m.Store("key", c, 8)
	m.tier.policy.Wait()
	if n := testing.AllocsPerRun(1_000, func() { m.Store("key", c, 8) }); n != 0 {
		t.Errorf("Store allocates %v times", n)
	}
}

// Writers own disjoint keys and count up; readers run free. A reader must never
// see a key's content go back, nor another key's, nor one from before a delete.
func TestReadersNeverSeeAnOlderContent(t *testing.T) {
	type content struct{ key, version int }
	const keys, writers, rounds = 2_000, 2, 40_000
	tier := newTier(t, 512<<10) // about half of the keys fit
	m := NewMap[content](tier)
	var floor [keys]atomic.Int64 // a version that was stored or deleted is below what may be read
	check := func(key int) {
		least := floor[key].Load()
		if c := ask(m, strconv.Itoa(key)); c != nil && (c.key != key || int64(c.version) < least) {
			t.Errorf("key %d: read %+v, want a version from %d on", key, *c, least)
		}
	}
	stop := make(chan struct{})
	var readers, wg sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					check(rand.IntN(keys))
				}
			}
		})
	}
	for w := range writers {
		wg.Go(func() {
			for version := range rounds {
				key := rand.IntN(keys/writers)*writers + w
				if rand.IntN(4) == 0 {
					m.Delete(strconv.Itoa(key))
					floor[key].Store(int64(version) + 1)
				} else {
					m.Store(strconv.Itoa(key), &content{key, version}, rand.Int64N(500))
					floor[key].Store(int64(version))
				}
				check(key)
			}
		})
	}
	wg.Wait()
	close(stop)
	readers.Wait()
	tier.policy.Wait()
	if s := tier.Stats(); s.Bytes > tier.limit || s.Entries != int64(m.Len()) {
		t.Errorf("Stats = %+v, Len = %d", s, m.Len())
	}
}
