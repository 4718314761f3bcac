package remote

import (
	"cmp"
	"context"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Raw is what stands at one Redis key.
type Raw struct {
	Type  string        // as Redis names it; "" if there is no key
	Value []byte        // of a string
	TTL   time.Duration // negative: it never expires
}

// Inspection is what is known of one cached key, at about one moment.
type Inspection struct {
	Keys       Keys
	Entry      Raw
	Build      Raw
	Generation uint64        // of the cache; 0: it has none, and its next reader begins one
	Now        time.Duration // the server's time since the epoch
}

// Inspect reads what there is of a key for a person. It changes nothing.
func (s *Store) Inspect(ctx context.Context, cache, key string) (Inspection, error) {
	keys := s.Keys(cache, key)
	in, err := retried(ctx, s.route(ctx, keys.V), ordinary, func(ctx context.Context) (Inspection, error) {
		tx := s.rdb.TxPipeline()
		entry, build := readRaw(ctx, tx, keys.V), readRaw(ctx, tx, keys.B())
		_, _ = tx.Exec(ctx) // each reply has its own error, and one of them may be none
		in := Inspection{Keys: keys}
		var entryErr, buildErr error
		in.Entry, entryErr = entry.raw()
		in.Build, buildErr = build.raw()
		return in, cmp.Or(entryErr, buildErr)
	})
	if err != nil {
		return Inspection{}, err
	}
	numbers, err := s.numbers(ctx, s.generationKey(cache))
	if err != nil {
		return Inspection{}, err
	}
	in.Generation = numbers[0]
	in.Now, err = s.ServerNow(ctx, keys)
	return in, err
}

// TagNumbers reads the numbers of tags, in their order, as Tags does, but changes
// nothing: those of tags that are not there are what Tags would give them, at least.
func (s *Store) TagNumbers(ctx context.Context, cache string, tags []string) ([]uint64, error) {
	numbers, err := s.numbers(ctx, s.tagKeys(cache, tags)...)
	if err != nil {
		return nil, err
	}
	sequence, numbers := numbers[0], numbers[1:]
	for i, n := range numbers {
		if n == 0 {
			numbers[i] = cmp.Or(sequence, math.MaxUint64)
		}
	}
	return numbers, nil
}

// numbers reads keys of one slot. What is absent, or no number of ours, is 0.
func (s *Store) numbers(ctx context.Context, keys ...string) ([]uint64, error) {
	found, err := retried(ctx, s.route(ctx, keys[0]), ordinary, func(ctx context.Context) ([]any, error) { return s.rdb.MGet(ctx, keys...).Result() })
	numbers := make([]uint64, len(found))
	for i, v := range found {
		text, _ := v.(string)
		numbers[i], _ = strconv.ParseUint(text, 10, 64)
	}
	return numbers, err
}

type rawReplies struct {
	kind  *redis.StatusCmd
	ttl   *redis.DurationCmd
	value *redis.StringCmd
}

func readRaw(ctx context.Context, tx redis.Pipeliner, key string) rawReplies {
	return rawReplies{kind: tx.Type(ctx, key), ttl: tx.PTTL(ctx, key), value: tx.Get(ctx, key)}
}

func (r rawReplies) raw() (Raw, error) {
	if err := cmp.Or(r.kind.Err(), r.ttl.Err()); err != nil {
		return Raw{}, err
	}
	raw := Raw{Type: r.kind.Val(), TTL: r.ttl.Val()}
	switch raw.Type {
	case "none":
		return Raw{}, nil
	case "string":
		var err error
		raw.Value, err = r.value.Bytes()
		return raw, err
	}
	return raw, nil // Redis refuses to GET it
}

// Build is what a build key says.
type Build struct {
	State    State         // Held, Failed, Cooling or Pass
	Nonce    uint64        // of the last lease: the server's time in µs when it was granted
	Failures int           // failed loads in a row
	Owner    string        // Held
	Waited   bool          // Held: somebody waits for its end
	RetryAt  time.Duration // Failed: the server's time when the next load may begin
	Code     string        // Failed: why
}

// ParseBuild reads what the scripts write to a build key; false for anything else.
func ParseBuild(value []byte) (Build, bool) {
	f := strings.Split(string(value), " ")
	ok := true
	number := func(i int) uint64 {
		n, err := strconv.ParseUint(f[i], 10, 64)
		ok = ok && err == nil
		return n
	}
	var b Build
	switch form := f[0] + strconv.Itoa(len(f)); form {
	case "L5":
		b = Build{State: Held, Waited: f[1] == "1", Nonce: number(2), Failures: int(number(3)), Owner: f[4]}
	case "F5":
		b = Build{State: Failed, Nonce: number(1), Failures: int(number(2)), RetryAt: time.Duration(number(3)) * time.Microsecond, Code: f[4]}
	case "C3":
		b = Build{State: Cooling, Nonce: number(1), Failures: int(number(2))}
	case "P3":
		b = Build{State: Pass, Nonce: number(1), Failures: int(number(2))}
	default:
		return Build{}, false
	}
	return b, ok
}
