package local

import (
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/dgraph-io/ristretto/v2"
)

const benchKeys = 10_000

// zipf returns 1<<16 keys with the skew of a product page.
func zipf() []string {
	z := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.1, 1, benchKeys-1)
	keys := make([]string, 1<<16)
	for i := range keys {
		keys[i] = "product:" + strconv.FormatUint(z.Uint64(), 10)
	}
	return keys
}

func BenchmarkLoad(b *testing.B) {
	hot := []string{"product:1"}
	for name, keys := range map[string][]string{"hot": hot, "zipf": zipf()} {
		mask := len(keys) - 1
		b.Run(name+"/herdgate", func(b *testing.B) {
			tier := newTier(b, 64*mib)
			m := NewMap[int](tier)
			for i := range benchKeys {
				m.Store("product:"+strconv.Itoa(i), new(i), 100)
			}
			tier.policy.Wait()
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for i := rand.IntN(len(keys)); pb.Next(); i++ {
					if ask(m, keys[i&mask]) == nil {
						b.Error("miss")
					}
				}
			})
		})
		b.Run(name+"/ristretto", func(b *testing.B) {
			c, err := ristretto.NewCache(&ristretto.Config[string, *int]{NumCounters: 10 * benchKeys, MaxCost: 64 * mib, BufferItems: 64})
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			for i := range benchKeys {
				c.Set("product:"+strconv.Itoa(i), new(i), 100)
			}
			c.Wait()
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for i := rand.IntN(len(keys)); pb.Next(); i++ {
					if v, ok := c.Get(keys[i&mask]); !ok || v == nil {
						b.Error("miss")
					}
				}
			})
		})
	}
}

// How much of a skewed stream the tier serves: what the sampling costs in hits.
func BenchmarkHitRatio(b *testing.B) {
	keys := zipf()
	run := func(b *testing.B, get func(string) bool, put func(string), wait func()) {
		b.Helper()
		hits, loads := 0, 0
		for i := 0; b.Loop(); i++ {
			key := keys[i%len(keys)]
			loads++
			if get(key) {
				hits++
			} else {
				put(key)
			}
			if i%1_000 == 0 {
				wait()
			}
		}
		b.ReportMetric(100*float64(hits)/float64(loads), "%hits")
	}
	const room = 1_000 // entries
	b.Run("herdgate", func(b *testing.B) {
		tier := newTier(b, room*(perEntry+12+1024))
		m := NewMap[int](tier)
		run(b, func(k string) bool { return ask(m, k) != nil }, func(k string) { m.Store(k, new(1), 1024) }, tier.policy.Wait)
	})
	b.Run("ristretto", func(b *testing.B) {
		c, err := ristretto.NewCache(&ristretto.Config[string, *int]{NumCounters: 10 * room, MaxCost: room, BufferItems: 64, IgnoreInternalCost: true})
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		run(b, func(k string) bool { _, ok := c.Get(k); return ok }, func(k string) { c.Set(k, new(1), 1) }, c.Wait)
	})
}

func BenchmarkStore(b *testing.B) {
	b.Run("existing", func(b *testing.B) {
		m := NewMap[int](newTier(b, 64*mib))
		c := new(1)
		b.ReportAllocs()
		for b.Loop() {
			m.Store("key", c, 8)
		}
	})
	b.Run("new", func(b *testing.B) {
		m := NewMap[int](newTier(b, 64*mib))
		c := new(1)
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			m.Store(strconv.Itoa(i), c, 8)
		}
	})
}
