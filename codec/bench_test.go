package codec

import (
	"fmt"
	"testing"

	"github.com/vmihailenco/msgpack/v5"
)

type row struct {
	ID    int64
	Name  string
	Email string
	Score float64
	Tags  []string
	Attrs map[string]string
}

func rows(n int) []row {
	out := make([]row, n)
	for i := range out {
		out[i] = row{
			int64(i), "a name of usual length", "somebody@example.org", 0.5,
			[]string{"a", "b", "c"},
			map[string]string{"k": "v", "l": "w"},
		}
	}
	return out
}

// BenchmarkUnmarshal puts the scan and the whole of Unmarshal beside the msgpack library alone.
func BenchmarkUnmarshal(b *testing.B) {
	benchmarkType[row](b, "struct", rows(1)[0])
	benchmarkType[[]row](b, "100structs", rows(100))
	benchmarkType[[]int64](b, "1000ints", make([]int64, 1000))
	benchmarkType[string](b, "string", fmt.Sprintf("%1000d", 1))
	benchmarkType[any](b, "any", map[string]any{"a": []any{1, "x", nil}, "b": map[string]any{"c": 1.5, "d": "text"}})
}

func benchmarkType[V any](b *testing.B, name string, v V) {
	b.Helper()
	c := Msgpack()
	data, err := c.Marshal(v)
	if err != nil {
		b.Fatal(err)
	}
	b.Run(name+"/scan", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			if _, err := scan(data); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run(name+"/herdgate", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			var out V
			if err := c.Unmarshal(data, &out); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run(name+"/msgpack", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			var out V
			if err := msgpack.Unmarshal(data, &out); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkMarshal(b *testing.B) {
	c := Msgpack()
	v := rows(100)
	b.Run("herdgate", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := c.Marshal(v); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("msgpack", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := msgpack.Marshal(v); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkCodecs puts the codecs beside each other, for the values that each of them is for.
func BenchmarkCodecs(b *testing.B) {
	text := fmt.Sprintf("%1000d", 1)
	for _, c := range []Codec{Msgpack(), JSON(), Raw()} {
		benchmarkCodec(b, c, "string", text)
		benchmarkCodec(b, c, "bytes", []byte(text))
	}
	for _, c := range []Codec{Msgpack(), JSON()} {
		benchmarkCodec(b, c, "struct", rows(1)[0])
		benchmarkCodec(b, c, "100structs", rows(100))
	}
}

func benchmarkCodec[V any](b *testing.B, c Codec, name string, v V) {
	b.Helper()
	data, err := c.Marshal(v)
	if err != nil {
		b.Fatal(err)
	}
	b.Run(name+"/marshal/"+c.Name(), func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			if _, err := c.Marshal(v); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run(name+"/unmarshal/"+c.Name(), func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			var out V
			if err := c.Unmarshal(data, &out); err != nil {
				b.Fatal(err)
			}
		}
	})
}
