package pack_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/herdgate/herdgate/codec"
	"github.com/herdgate/herdgate/internal/pack"
)

type row struct {
	ID      int64
	Name    string
	Email   string
	Country string
	Price   float64
	Created time.Time
	Tags    []string
	Attrs   map[string]string
}

// rows is size bytes of records in MessagePack, one after the other, as in a list that a service would cache.
func rows(tb testing.TB, size int) []byte {
	tb.Helper()
	rnd := rand.New(rand.NewPCG(1, 2))
	pick := func(from ...string) string { return from[rnd.IntN(len(from))] }
	c := codec.Msgpack()
	var list []byte
	for len(list) < size {
		id := rnd.Int64N(1 << 40)
		data, err := c.Marshal(row{
			ID:      id,
			Name:    fmt.Sprintf("%s %s", pick("Ann", "Bob", "Chidi", "Dana", "Emre", "Fumi"), pick("Adler", "Baker", "Costa", "Dubois", "Eriksen")),
			Email:   fmt.Sprintf("user%d@example.org", id),
			Country: pick("DE", "FR", "JP", "NG", "US"),
			Price:   float64(rnd.IntN(100_000)) / 100,
			Created: time.Unix(1_700_000_000+rnd.Int64N(1<<24), 0),
			Tags:    []string{pick("new", "used", "sale"), pick("red", "green", "blue")},
			Attrs:   map[string]string{"sku": fmt.Sprintf("%08x", rnd.Uint32()), "warehouse": pick("north", "south")},
		})
		if err != nil {
			tb.Fatal(err)
		}
		list = append(list, data...)
	}
	return list[:size]
}

// BenchmarkPacker reports the time, and the size of the payload as a multiple of what it is packed to.
func BenchmarkPacker(b *testing.B) {
	var p pack.Packer
	for _, kib := range []int{1, 16, 256} {
		payload := rows(b, kib<<10)
		for _, a := range []pack.Algorithm{pack.S2, pack.Zstd} {
			packed, ok := p.Pack(a, payload)
			if !ok {
				b.Fatal("not packed")
			}
			b.Run(fmt.Sprintf("pack/%s/%dKiB", a, kib), func(b *testing.B) {
				b.SetBytes(int64(len(payload)))
				b.ReportAllocs()
				for b.Loop() {
					p.Pack(a, payload)
				}
				b.ReportMetric(float64(len(payload))/float64(len(packed)), "ratio")
			})
			b.Run(fmt.Sprintf("unpack/%s/%dKiB", a, kib), func(b *testing.B) {
				b.SetBytes(int64(len(payload)))
				b.ReportAllocs()
				for b.Loop() {
					if _, err := p.Unpack(a, packed, codec.MaxSize); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
