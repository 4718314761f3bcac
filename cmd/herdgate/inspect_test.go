package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/codec"
	"github.com/herdgate/herdgate/internal/remote"
	"github.com/herdgate/herdgate/internal/testutil"
	"github.com/herdgate/herdgate/internal/wire"
)

// steady is a policy whose entries differ from run to run in nothing but their times.
func steady() herdgate.Policy {
	return herdgate.Policy{TTL: time.Hour, Stale: 10 * time.Hour, Jitter: herdgate.Off, EarlyBeta: herdgate.Off, Version: 3}
}

func TestInspectTellsWhatIsStored(t *testing.T) {
	s := newShop(t)
	cache := newCache[product](t, s.gate(), nil, steady())
	s.must(cache.Set(t.Context(), "42", product{ID: "42", Name: "Teapot <b>", Price: 1999, Tags: []string{"a\tb", "\u009bX"}}))

	a := s.tool("inspect", "42")
	a.expect(t, exitDone, "")
	golden(t, "stored.golden", a.out)
	a = s.tool("inspect", "-json", "42")
	a.expect(t, exitDone, "")
	golden(t, "stored.json.golden", a.out)
	if strings.Contains(s.tool("inspect", "42").out, "\u009b") {
		t.Error("the payload can steer the terminal")
	}
}

func TestInspectTellsTheAgeByTheServersClock(t *testing.T) {
	s := newShop(t)
	cache := newCache[product](t, s.gate(), nil, steady())
	s.must(cache.Set(t.Context(), "42", product{}))
	stored := s.rdb.Time(t.Context()).Val()
	var r struct {
		Entry struct {
			State  string
			TTL    int64 `json:"ttl_ms"`
			Header struct {
				BuiltAt   time.Time `json:"built_at"`
				Age       int64     `json:"age_ms"`
				Fresh     int64     `json:"fresh_ms"`
				Hard      int64     `json:"hard_ms"`
				FreshLeft int64     `json:"fresh_left_ms"`
				HardLeft  int64     `json:"hard_left_ms"`
			}
		}
	}
	s.must(json.Unmarshal([]byte(s.tool("inspect", "-json", "42").out), &r))
	h, now := r.Entry.Header, s.rdb.Time(t.Context()).Val()
	near := func(got, want, by int64) bool { return got >= want-by && got <= want }
	if stored.Sub(h.BuiltAt).Abs() > time.Minute || h.Age < 0 || h.Age > now.Sub(h.BuiltAt).Milliseconds() {
		t.Errorf("stored at %v, aged %d ms", h.BuiltAt, h.Age)
	}
	if h.Fresh != 3600_000 || h.Hard != 11*3600_000 || !near(h.FreshLeft, h.Fresh-h.Age, 1) || !near(h.HardLeft, h.Hard-h.Age, 1) || !near(r.Entry.TTL, h.Hard, 60_000) {
		t.Errorf("%+v", r)
	}
}

func TestInspectTellsHowFreshAnEntryIs(t *testing.T) {
	s := newShop(t)
	c := &connection{Store: remote.NewStore(s.rdb, "shop", "test", time.Second), rdb: s.rdb}
	keys := c.Keys("product", "42")
	now := s.rdb.Time(t.Context()).Val()
	ms := func(d time.Duration) uint32 { return uint32(d.Milliseconds()) }
	for name, e := range map[string]struct {
		builtAt           int64
		early, fresh, hrd time.Duration
		want              string
	}{
		"fresh":                {now.UnixMilli(), time.Hour, time.Hour, 2 * time.Hour, "fresh"},
		"early":                {now.Add(-time.Hour).UnixMilli(), time.Minute, 2 * time.Hour, 3 * time.Hour, "early"},
		"stale":                {now.Add(-time.Hour).UnixMilli(), time.Minute, time.Minute, 3 * time.Hour, "stale"},
		"marked":               {0, time.Hour, time.Hour, 3 * time.Hour, "stale marked stale"},
		"expired":              {now.Add(-time.Hour).UnixMilli(), time.Minute, time.Minute, time.Minute, "stale its age cannot be"},
		"of the future":        {now.Add(time.Hour).UnixMilli(), time.Hour, time.Hour, 2 * time.Hour, "stale its age cannot be"},
		"of the farthest past": {1, time.Hour, time.Hour, 2 * time.Hour, "stale its age cannot be"},
		"of the farthest time": {1<<63 - 1, time.Hour, time.Hour, 2 * time.Hour, "stale its age cannot be"},
		"negative":             {-5, time.Hour, time.Hour, 2 * time.Hour, "stale marked stale"},
	} {
		h := wire.Header{Codec: 1, KeyHash: wire.KeyHash(keys.V, 0), BuiltAt: e.builtAt, Early: ms(e.early), Fresh: ms(e.fresh), Hard: ms(e.hrd)}
		s.must(s.rdb.Set(t.Context(), keys.V, wire.Append(nil, h, []byte{0xc0}), time.Hour).Err())
		r, err := c.inspect(t.Context(), "shop", "product", "42")
		s.must(err)
		if got := strings.TrimSpace(r.Entry.State + " " + r.Entry.Why); !strings.HasPrefix(got, e.want) || r.trouble() != nil {
			t.Errorf("%s is %q, want %q", name, got, e.want)
		}
		r.write(io.Discard)
		if _, err := json.Marshal(r); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestInspectTellsARememberedNotFound(t *testing.T) {
	s := newShop(t)
	missing := func(context.Context, string) (product, error) { return product{}, herdgate.ErrNotFound }
	cache := newCache(t, s.gate(), missing, herdgate.Policy{NegativeTTL: time.Hour, Jitter: herdgate.Off, MinRebuildInterval: time.Millisecond})
	if _, err := cache.Get(t.Context(), "42"); !errors.Is(err, herdgate.ErrNotFound) {
		t.Fatal(err)
	}
	s.awaitRest("42")
	a := s.tool("inspect", "42")
	a.expect(t, exitDone, "")
	golden(t, "negative.golden", a.out)
}

func TestInspectTellsWhoLoadsAKey(t *testing.T) {
	s := newShop(t)
	begun, release := make(chan struct{}), make(chan struct{})
	load := func(ctx context.Context, key string) (product, error) {
		close(begun)
		select {
		case <-release:
		case <-ctx.Done():
		}
		return product{ID: key}, nil
	}
	winner := newCache(t, s.gate(), load, steady())
	loser := newCache(t, s.gate(), load, steady())
	done := make(chan error, 2)
	get := func(c *herdgate.Cache[product]) {
		_, err := c.Get(context.WithoutCancel(t.Context()), "42")
		done <- err
	}
	go get(winner)
	<-begun
	go get(loser)
	testutil.Eventually(t, 5*time.Second, func() bool {
		return strings.HasPrefix(s.rdb.Get(t.Context(), "shop:b:product:{42}").Val(), "L 1 ")
	}, "the loser waits")
	a := s.tool("inspect", "42")
	a.expect(t, exitDone, "")
	golden(t, "lease.golden", a.out)
	a = s.tool("inspect", "-json", "42")
	a.expect(t, exitDone, "")
	golden(t, "lease.json.golden", a.out)
	close(release)
	for range 2 {
		s.must(<-done)
	}
}

func TestInspectTellsOfAFailedLoad(t *testing.T) {
	s := newShop(t)
	fail := func(context.Context, string) (product, error) { return product{}, errors.New("too many connections") }
	cache := newCache(t, s.gate(), fail, herdgate.Policy{FailureBackoff: time.Hour, MaxFailureBackoff: time.Hour})
	_, _ = cache.Get(t.Context(), "42")
	a := s.tool("inspect", "42")
	a.expect(t, exitDone, "")
	golden(t, "failed.golden", a.out)
}

func TestInspectTellsOfPassAndCooling(t *testing.T) {
	s := newShop(t)
	for mark, want := range map[string]string{"P 1700000000000000 0": "pass: each process loads", "C 1700000000000000 2": "cooling: what is left"} {
		s.must(s.rdb.Set(t.Context(), "shop:b:product:{42}", mark, time.Hour).Err())
		a := s.tool("inspect", "42")
		a.expect(t, exitDone, "")
		if !strings.Contains(a.out, want) || !strings.Contains(a.out, "2023-11-14 22:13:20.000 UTC") {
			t.Errorf("%s: %s", mark, a.out)
		}
	}
}

func TestInspectShowsEachCodecsPayload(t *testing.T) {
	s := newShop(t)
	policy := steady()
	set := func(name string, c codec.Codec) *herdgate.Cache[string] {
		policy.Codec = c
		gate := s.gate(func(o *herdgate.Options) { o.Namespace = "shop" })
		cache, err := herdgate.New[string](gate, "product", nil, policy)
		s.must(err)
		s.must(cache.Set(t.Context(), name, `{"a": 1.50, "z": [true], "b": "x"}`))
		return cache
	}
	for name, c := range map[string]struct {
		codec codec.Codec
		want  []string
	}{
		"raw":  {codec.Raw(), []string{"codec raw", "34 bytes", "00000000  7b 22 61 22", `|{"a": 1.50, "z":|`}},
		"own":  {ownCodec{codec.Raw()}, []string{"codec 77 of the service's own", "00000000  7b 22 61 22"}},
		"json": {codec.JSON(), []string{"codec json", `    "{\"a\": 1.50, \"z\": [true], \"b\": \"x\"}"`}},
	} {
		set(name, c.codec)
		a := s.tool("inspect", name)
		a.expect(t, exitDone, "")
		for _, want := range c.want {
			if !strings.Contains(a.out, want) {
				t.Errorf("%s lacks %q:\n%s", name, want, a.out)
			}
		}
	}
}

type ownCodec struct{ codec.Codec }

func (ownCodec) ID() byte { return 77 }

func TestPayloadsBecomeJSON(t *testing.T) {
	pack := func(v any) []byte {
		data, err := msgpack.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	for _, c := range []struct {
		id   byte
		data []byte
		want string
	}{
		{1, pack(nil), `null`},
		{1, pack(struct {
			Zeta, Alpha any
		}{1, "x"}), `{"Zeta":1,"Alpha":"x"}`},
		{1, pack(map[int]string{7: "a"}), `{"7":"a"}`},
		{1, pack(map[[2]int]string{{1, 2}: "a"}), `{"[1,2]":"a"}`},
		{1, pack([]any{uint64(1<<64 - 1), -5, 1.5, true, []byte("hi"), "<&>", []int{}, map[string]int{}}), `[18446744073709551615,-5,1.5,true,"aGk=","<&>",[],{}]`},
		{1, pack([]float64{1 / zero(), zero() / zero()}), `["+Inf","NaN"]`},
		{1, pack(time.Date(2026, 11, 30, 12, 0, 0, 5, time.UTC).In(time.Local)), `"` + time.Date(2026, 11, 30, 12, 0, 0, 5, time.UTC).In(time.Local).Format(time.RFC3339Nano) + `"`},
		{2, []byte(`{"z":1.50,"a":12345678901234567890}`), `{"z":1.50,"a":12345678901234567890}`},
	} {
		p := decode(c.id, c.data)
		if string(p.JSON) != c.want || p.Why != "" || !json.Valid(p.JSON) {
			t.Errorf("% x becomes %s (%s), want %s", c.data, p.JSON, p.Why, c.want)
		}
	}
}

func zero() float64 { return 0 }

func TestAPayloadThatCannotBeDecodedIsShownInHex(t *testing.T) {
	deep := strings.Repeat("\x91", 100_000)
	for id, payloads := range map[byte][]string{
		1: {"", "\xc1", "\xdd\xff\xff\xff\xff", "\x01\x02", deep, "\xc7\x01\x55\x00", "\x81"},
		2: {"", "{", `{"a":1}x`, strings.Repeat("[", 100_000), "\xff"},
	} {
		for _, data := range payloads {
			p := decode(id, []byte(data))
			if p.JSON != nil || p.Why == "" || p.Bytes != len(data) || len(p.Hex) != 2*min(len(data), previewed) {
				t.Errorf("codec %d, %.20q: %+v", id, data, p)
			}
		}
	}
}

func FuzzWhateverIsStoredIsDescribed(f *testing.F) {
	keys := remote.Keys{V: "shop:v:product:{42}"}
	h := wire.Header{Codec: 1, KeyHash: wire.KeyHash(keys.V, 7), Fresh: 1, Hard: 2}
	f.Add(wire.Append(nil, h, []byte("\x81\xa1a\x01")), []byte("L 0 1 2 ab"), byte(1), int64(5))
	f.Add([]byte("text"), []byte("F 1 2 3 error"), byte(2), int64(0))
	f.Fuzz(func(t *testing.T, stored, mark []byte, id byte, now int64) {
		for _, value := range [][]byte{stored, wire.Append(nil, wire.Header{Codec: id, Flags: wire.Flags(len(mark)), KeyHash: h.KeyHash, BuiltAt: now, Hard: 1 << 20}, stored)} {
			found := remote.Inspection{
				Keys: keys, Generation: 7, Now: time.Duration(now),
				Entry: remote.Raw{Type: "string", Value: value, TTL: time.Minute},
				Build: remote.Raw{Type: "string", Value: mark, TTL: time.Minute},
			}
			r := report{Entry: describeEntry(found), Build: describeBuild(found)}
			if r.Entry.State == "absent" || r.Build.State == "nothing" {
				t.Errorf("%q, %q are described as %+v", value, mark, r)
			}
			r.write(io.Discard)
			if _, err := json.Marshal(r); err != nil {
				t.Error(err)
			}
			_ = r.trouble()
		}
	})
}

func TestWhatNoHerdgateWroteIsShownAndCalledSo(t *testing.T) {
	s := newShop(t)
	cache := newCache[product](t, s.gate(), nil, steady())
	s.must(cache.Set(t.Context(), "42", product{ID: "42"}))
	const v, b = "shop:v:product:{7}", "shop:b:product:{7}"
	stored := s.rdb.Get(t.Context(), "shop:v:product:{42}").Val()
	set := func(key, value string, ttl time.Duration) func() error {
		return func() error { return s.rdb.Set(t.Context(), key, value, ttl).Err() }
	}
	newer, newerFlags := []byte(stored), wire.Header{Codec: 1, Flags: 0x40, KeyHash: wire.KeyHash(v, 0), Fresh: 1, Hard: 1}
	newer[2] = 9
	for name, c := range map[string]struct {
		do       func() error
		err, out string
	}{
		"another type":    {func() error { return s.rdb.HSet(t.Context(), v, "f", "x").Err() }, "the Redis key is a hash, and entries are strings", "TTL        none"},
		"text":            {set(v, "hello, \x1b[31mworld", 0), "shorter than its header", "|hello, .[31mworl|"},
		"long text":       {set(v, strings.Repeat("hello", 100), time.Hour), "the magic is missing", "and 244 bytes more"},
		"nothing in it":   {set(v, "", time.Hour), "shorter than its header", "size       0 bytes"},
		"cut off":         {set(v, stored[:len(stored)-1], time.Hour), "the checksum does not match", "codec msgpack, schema 3, no flags"},
		"another key's":   {set(v, stored, time.Hour), "it belongs to another key", "codec msgpack, schema 3, no flags"},
		"a newer format":  {set(v, string(newer), time.Hour), "a newer version of herdgate wrote it: newer format", "00000000  c1 68 09"},
		"newer flags":     {set(v, string(wire.Append(nil, newerFlags, nil)), time.Hour), "a newer version of herdgate wrote it: unknown flags", "flags unknown 0x40"},
		"a build of text": {set(b, "hello", time.Hour), "no herdgate wrote it", "foreign"},
		"a build for ever": {
			set(b, "C 1700000000000000 0", 0), "it never expires", "foreign",
		},
		"a build of another type": {func() error { return s.rdb.LPush(t.Context(), b, "x").Err() }, "the Redis key is a list", "foreign"},
	} {
		s.must(s.rdb.Del(t.Context(), v, b).Err())
		s.must(c.do())
		a := s.tool("inspect", "7")
		a.expect(t, exitFailed, c.err)
		if !strings.Contains(a.out, c.out) || strings.Contains(a.out, "\x1b") {
			t.Errorf("%s: lacks %q:\n%s", name, c.out, a.out)
		}
		a = s.tool("inspect", "-json", "7")
		a.expect(t, exitFailed, c.err)
		if !json.Valid([]byte(a.out)) {
			t.Errorf("%s: %s", name, a.out)
		}
	}
}

func TestInspectTellsTagsAndWhetherTheyHold(t *testing.T) {
	s := newShop(t)
	cache, other := newCache[product](t, s.gate(), nil, steady()), newCache[product](t, s.gate(), nil, steady())
	set := func() {
		t.Helper()
		s.must(cache.Set(t.Context(), "42", product{ID: "42"}, herdgate.EntryTags("brand:a", "b b")))
	}
	agrees := func(want bool) {
		t.Helper()
		if _, found, err := other.Peek(t.Context(), "42"); err != nil || found != want {
			t.Errorf("the library serves it: %v, want %v (%v)", found, want, err)
		}
	}
	const outdated = "was invalidated, or forgotten by Redis, after it was loaded"
	set()
	s.tool("inspect", "42").expect(t, exitDone, "") // nobody has asked for the tags yet, and nothing was invalidated
	s.must(cache.InvalidateTags(t.Context(), "another"))
	s.tool("inspect", "42").expect(t, exitFailed, outdated) // the tags may have been, before Redis forgot them
	agrees(false)
	set()
	agrees(true)
	a := s.tool("inspect", "42")
	a.expect(t, exitDone, "")
	if !strings.Contains(a.out, `tags       "brand:a" "b b"`) || !strings.Contains(a.out, `"ID": "42"`) {
		t.Errorf("got %s", a.out)
	}
	s.must(cache.InvalidateTags(t.Context(), "b b"))
	a = s.tool("inspect", "42")
	a.expect(t, exitFailed, `its tag "b b" `+outdated)
	agrees(false)
	if !strings.Contains(a.out, `"ID": "42"`) {
		t.Errorf("got %s", a.out)
	}
	set()
	s.must(s.rdb.Del(t.Context(), "shop:t:{product}", "shop:t:{product}:brand:a").Err())
	s.tool("inspect", "42").expect(t, exitFailed, `its tag "brand:a" `+outdated)
}

type tokenLoader struct{}

func (tokenLoader) Load(_ context.Context, l *herdgate.Load[product]) (product, error) {
	l.SetToken("etag \x1b1")
	return product{ID: l.Key()}, nil
}

func TestInspectUnpacksWhatIsCompressed(t *testing.T) {
	s := newShop(t)
	long := strings.Repeat("teapot ", 1000)
	for flag, how := range map[string]herdgate.Compression{"s2": herdgate.S2, "zstd": herdgate.Zstd} {
		policy := steady()
		policy.Compression = how
		s.must(newCache[product](t, s.gate(), nil, policy).Set(t.Context(), "42", product{Name: long}))
		a := s.tool("inspect", "42")
		a.expect(t, exitDone, "")
		for _, want := range []string{"flags " + flag, "bytes, compressed to ", `"Name": "` + long + `"`} {
			if !strings.Contains(a.out, want) {
				t.Errorf("%s lacks %.30q: %.800s", flag, want, a.out)
			}
		}
	}
	const v = "shop:v:product:{7}"
	generation, err := s.rdb.Get(t.Context(), "shop:g:product").Uint64()
	s.must(err)
	h := wire.Header{Codec: 1, Flags: wire.FlagZstd, KeyHash: wire.KeyHash(v, generation), BuiltAt: 1, Fresh: 1, Hard: 1}
	s.must(s.rdb.Set(t.Context(), v, wire.Append(nil, h, []byte("not packed")), time.Hour).Err())
	s.tool("inspect", "7").expect(t, exitFailed, "pack: corrupt: zstd: ")
}

func TestInspectTellsAToken(t *testing.T) {
	s := newShop(t)
	cache, err := herdgate.NewLoader(s.gate(), "product", tokenLoader{}, steady())
	s.must(err)
	_, err = cache.Get(t.Context(), "42")
	s.must(err)
	a := s.tool("inspect", "42")
	a.expect(t, exitDone, "")
	if !strings.Contains(a.out, `token      "etag \x1b1"`) || !strings.Contains(a.out, "flags extended") || !strings.Contains(a.out, `"ID": "42"`) {
		t.Errorf("got %s", a.out)
	}
}

func TestAnEntryFromBeforeAClearIsCalledSo(t *testing.T) {
	s := newShop(t)
	cache := newCache[product](t, s.gate(), nil, steady())
	s.must(cache.Set(t.Context(), "42", product{ID: "42"}))
	s.must(cache.Clear(t.Context()))
	s.tool("inspect", "42").expect(t, exitFailed, "it belongs to another key or to a cleared generation")
	s.must(cache.Set(t.Context(), "42", product{ID: "42"}))
	s.tool("inspect", "42").expect(t, exitDone, "")
}

func TestAKeyOfWhichNothingIsKnownIsAFailure(t *testing.T) {
	s := newShop(t)
	a := s.tool("inspect", "42")
	a.expect(t, exitFailed, `nothing is stored for key "42" of cache product in namespace shop (shop:v:product:{42}), and nobody is building it`)
	if a.out != "" {
		t.Errorf("got %s", a.out)
	}
	a = s.tool("inspect", "-json", "42")
	a.expect(t, exitFailed, "nothing is stored")
	golden(t, "absent.json.golden", a.out)
}

func TestInspectFindsEveryKeyOfTheLibrary(t *testing.T) {
	s := newShop(t)
	cache := newCache[product](t, s.gate(), nil, steady())
	for _, key := range []string{"", "{user1}cart", "a b", "100%", "}{", "-x", "--", "ключ", "\x1b[31m", "\xff"} {
		s.must(cache.Set(t.Context(), key, product{Name: "of " + key}))
		a := s.tool("inspect", "--", key)
		a.expect(t, exitDone, "")
		name, err := json.Marshal("of " + key) // also of what is no UTF-8
		s.must(err)
		if !strings.Contains(a.out, `"Name": `+string(name)) || strings.Contains(a.out, "\x1b") {
			t.Errorf("%q: %s", key, a.out)
		}
	}
}

// notRedis is the address of something that answers in another protocol.
func notRedis(t *testing.T) string {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return l.Addr().String()
}
