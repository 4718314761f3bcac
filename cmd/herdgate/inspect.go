package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/herdgate/herdgate/internal/remote"
	"github.com/herdgate/herdgate/internal/wire"
)

func inspectCommand(flags *flag.FlagSet) action {
	var at cacheTarget
	at.declare(flags)
	return func(ctx context.Context, args []string, out output, _ io.Writer) error {
		if len(args) != 1 {
			return misused("inspect takes one key, not %d: quote a key with spaces", len(args))
		}
		c, err := at.connect(ctx)
		if err != nil {
			return err
		}
		defer c.close(ctx)
		r, err := c.inspect(ctx, at.namespace, at.cache, args[0])
		if err != nil {
			return err
		}
		switch {
		case at.json:
			encoder := json.NewEncoder(out)
			encoder.SetEscapeHTML(false)
			encoder.SetIndent("", "  ")
			if err := encoder.Encode(r); err != nil {
				return err
			}
		case r.Entry.State != "absent" || r.Build.State != "nothing":
			r.write(out)
		}
		return r.trouble()
	}
}

// report is what inspect tells of a key.
type report struct {
	Namespace  string    `json:"namespace"`
	Cache      string    `json:"cache"`
	Key        string    `json:"key"`
	ServerTime time.Time `json:"server_time"` // Redis's clock, from which ages count
	Generation uint64    `json:"generation"`  // of the cache, since it was cleared or first used; 0: none
	Entry      entry     `json:"entry"`
	Build      build     `json:"build"`
}

// entry is what stands at the entry's Redis key.
type entry struct {
	RedisKey string  `json:"redis_key"`
	State    string  `json:"state"`          // absent, fresh, early, stale, unusable
	Why      string  `json:"why,omitempty"`  // unusable, or stale inside its TTL: the reason
	Type     string  `json:"type,omitempty"` // of the Redis key
	TTL      *millis `json:"ttl_ms"`         // null: it never expires, or is absent
	Bytes    int     `json:"bytes"`          // of the whole string
	Header   *header `json:"header"`         // null: there is none that this version can read
	Payload  payload `json:"payload"`
}

// header is the header of an entry, decoded.
type header struct {
	Codec     string     `json:"codec"`
	Schema    uint16     `json:"schema"`   // Policy.Version
	Negative  bool       `json:"negative"` // a remembered not-found
	Flags     []string   `json:"flags"`
	Version   string     `json:"version"`  // random for each store
	BuiltAt   *time.Time `json:"built_at"` // null: marked stale by an expire
	Age       *millis    `json:"age_ms"`   // null: not known
	Fresh     millis     `json:"fresh_ms"` // these three count from built_at
	Hard      millis     `json:"hard_ms"`
	Early     millis     `json:"early_ms"`
	FreshLeft *millis    `json:"fresh_left_ms"` // below zero: since when it is not
	HardLeft  *millis    `json:"hard_left_ms"`
	EarlyLeft *millis    `json:"early_left_ms"`
	Tags      []string   `json:"tags,omitempty"`
	Token     string     `json:"token,omitempty"` // that the loader gave it
	tagsAt    uint64     // the number that its tags must not exceed
}

// build is what stands at the build key.
type build struct {
	RedisKey string     `json:"redis_key"`
	State    string     `json:"state"`          // nothing, lease, failed, cooling, pass, foreign
	Why      string     `json:"why,omitempty"`  // foreign: the reason
	Type     string     `json:"type,omitempty"` // of the Redis key
	TTL      *millis    `json:"ttl_ms"`
	Owner    string     `json:"owner,omitempty"`      // lease: random for each acquisition
	Nonce    uint64     `json:"nonce,omitempty"`      // of the last lease
	Granted  *time.Time `json:"granted_at,omitempty"` // the last lease, by Redis's clock
	Waited   bool       `json:"waited"`               // lease: another process waits for its end
	Failures int        `json:"failures"`             // failed loads in a row
	Code     string     `json:"code,omitempty"`       // failed: error, panic or timeout
	RetryIn  *millis    `json:"retry_in_ms,omitempty"`
}

// millis is a duration that is whole milliseconds in JSON.
type millis time.Duration

// MarshalJSON implements json.Marshaler.
func (m millis) MarshalJSON() ([]byte, error) {
	return json.Marshal(time.Duration(m).Milliseconds())
}

func (m millis) String() string { return time.Duration(m).Round(time.Millisecond).String() }

// inspect reads and explains the two Redis keys of a key.
func (c *connection) inspect(ctx context.Context, namespace, cache, key string) (*report, error) {
	found, err := c.Inspect(ctx, cache, key)
	if err != nil {
		return nil, c.explain(err)
	}
	r := &report{
		Namespace: namespace, Cache: cache, Key: key, ServerTime: moment(found.Now), Generation: found.Generation,
		Entry: describeEntry(found), Build: describeBuild(found),
	}
	if h := r.Entry.Header; h != nil && len(h.Tags) > 0 {
		numbers, err := c.TagNumbers(ctx, cache, h.Tags)
		if err != nil {
			return nil, c.explain(err)
		}
		r.Entry.compare(numbers)
	}
	return r, nil
}

func describeEntry(found remote.Inspection) entry {
	raw := found.Entry
	e := entry{RedisKey: found.Keys.V, State: "absent", Type: raw.Type, TTL: ttl(raw), Bytes: len(raw.Value)}
	unusable := func(why string) entry {
		e.State, e.Why, e.Payload = "unusable", why, preview(raw.Value)
		return e
	}
	switch raw.Type {
	case "":
		return e
	case "string":
	default:
		return unusable("the Redis key is a " + raw.Type + ", and entries are strings")
	}
	h, body, err := wire.Describe(raw.Value)
	if h != (wire.Header{}) {
		e.Header = describeHeader(h, found.Now)
	}
	if err == nil && h.KeyHash != wire.KeyHash(found.Keys.V, found.Generation) {
		err = wire.ErrOther
	}
	if err == nil && h.Flags&wire.FlagExtended != 0 {
		var x wire.Extended
		if x, body, err = wire.CutExtended(body); err == nil {
			e.Header.Tags, e.Header.Token, e.Header.tagsAt = x.Tags, x.Token, x.TagsAt
		}
	}
	packed := len(body)
	if err == nil {
		body, err = unpack(h.Flags, body)
	}
	switch {
	case errors.Is(err, wire.ErrNewer):
		return unusable("a newer version of herdgate wrote it: " + reason(err))
	case err != nil:
		return unusable(reason(err))
	}
	if !e.Header.Negative {
		e.Payload = decode(h.Codec, body)
		if h.Flags&(wire.FlagS2|wire.FlagZstd) != 0 {
			e.Payload.Packed = packed
		}
	}
	e.State, e.Why = e.Header.state()
	return e
}

// compare says whether a tag was invalidated, by the numbers of the tags.
func (e *entry) compare(numbers []uint64) {
	for i, n := range numbers {
		if n > e.Header.tagsAt {
			e.State, e.Why = "unusable", fmt.Sprintf("its tag %q was invalidated, or forgotten by Redis, after it was loaded", e.Header.Tags[i])
		}
	}
}

// reason is an error of package wire without what all of them begin with, or any other.
func reason(err error) string {
	text := err.Error()
	for _, kind := range []error{wire.ErrBad, wire.ErrNewer} {
		text = strings.TrimPrefix(text, kind.Error()+": ")
	}
	return text
}

func describeHeader(h wire.Header, now time.Duration) *header {
	ms := func(n uint32) millis { return millis(time.Duration(n) * time.Millisecond) }
	d := &header{
		Codec: codecName(h.Codec), Schema: h.Schema, Negative: h.Flags&wire.FlagNegative != 0, Flags: flagNames(h.Flags),
		Version: fmt.Sprintf("%016x", h.Version), Fresh: ms(h.Fresh), Hard: ms(h.Hard), Early: ms(h.Early),
	}
	if h.BuiltAt <= 0 {
		return d
	}
	at := time.UnixMilli(h.BuiltAt).UTC()
	age := moment(now).Sub(at) // saturates, whatever stands there
	left := func(of millis) *millis { rest := of - millis(age); return &rest }
	if d.Age = (*millis)(&age); at.Year() <= 9999 { // JSON has no later ones
		d.BuiltAt = &at
	}
	d.FreshLeft, d.HardLeft, d.EarlyLeft = left(d.Fresh), left(d.Hard), left(d.Early)
	return d
}

// clockError is how far the library lets ages be below zero.
const clockError = millis(time.Second)

// state is what a service that reads the entry now makes of it.
func (h *header) state() (state, why string) {
	switch {
	case h.Age == nil:
		return "stale", "marked stale"
	case *h.Age <= -clockError || *h.HardLeft <= 0:
		return "stale", "its age cannot be: Redis's clock was set, or another server wrote it"
	case *h.FreshLeft <= 0:
		return "stale", ""
	case *h.EarlyLeft <= 0:
		return "early", ""
	}
	return "fresh", ""
}

func describeBuild(found remote.Inspection) build {
	raw := found.Build
	d := build{RedisKey: found.Keys.B(), State: "nothing", Type: raw.Type, TTL: ttl(raw)}
	if raw.Type == "" {
		return d
	}
	b, ok := remote.ParseBuild(raw.Value)
	switch {
	case raw.Type != "string":
		d.State, d.Why = "foreign", "the Redis key is a "+raw.Type+"; the next load removes it"
		return d
	case !ok:
		d.State, d.Why = "foreign", "no herdgate wrote it; the next load removes it"
		return d
	case d.TTL == nil:
		d.State, d.Why = "foreign", "it never expires, so no herdgate wrote it; the next load removes it"
		return d
	}
	granted := moment(time.Duration(b.Nonce) * time.Microsecond)
	d.Owner, d.Nonce, d.Granted, d.Waited, d.Failures, d.Code = b.Owner, b.Nonce, &granted, b.Waited, b.Failures, b.Code
	switch b.State {
	case remote.Held:
		d.State = "lease"
	case remote.Failed:
		d.State = "failed"
		rest := millis(max(0, b.RetryAt-found.Now))
		d.RetryIn = &rest
	case remote.Cooling:
		d.State = "cooling"
	case remote.Pass:
		d.State = "pass"
	}
	return d
}

// trouble is the error of a command that found no entry which a service could use. A
// key that is only being built is no trouble.
func (r *report) trouble() error {
	e := r.Entry
	switch {
	case e.State == "unusable":
		return fmt.Errorf("what stands at %s is no entry that services can use: %s", e.RedisKey, e.Why)
	case r.Build.State == "foreign":
		return fmt.Errorf("what stands at %s is no build state: %s", r.Build.RedisKey, r.Build.Why)
	case e.State == "absent" && r.Build.State == "nothing":
		return fmt.Errorf("nothing is stored for key %q of cache %s in namespace %s (%s), and nobody is building it", r.Key, r.Cache, r.Namespace, e.RedisKey)
	}
	return nil
}

func ttl(raw remote.Raw) *millis {
	if raw.Type == "" || raw.TTL < 0 {
		return nil
	}
	return (*millis)(&raw.TTL)
}

// moment is a time of the server.
func moment(sinceEpoch time.Duration) time.Time {
	return time.UnixMicro(sinceEpoch.Microseconds()).UTC()
}

func flagNames(flags wire.Flags) []string {
	names := []string{}
	for _, known := range []struct {
		flag wire.Flags
		name string
	}{{wire.FlagNegative, "negative"}, {wire.FlagS2, "s2"}, {wire.FlagZstd, "zstd"}, {wire.FlagExtended, "extended"}} {
		if flags&known.flag != 0 {
			names = append(names, known.name)
			flags &^= known.flag
		}
	}
	if flags != 0 {
		names = append(names, fmt.Sprintf("unknown %#x", byte(flags)))
	}
	return names
}
