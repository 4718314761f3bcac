package herdgate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// BatchLoader is a [Loader] that can load many keys at once. GetMany, Warm, and the
// refreshes behind what a GetMany has served use LoadMany; all other calls use Load.
type BatchLoader[V any] interface {
	Loader[V]

	// LoadMany loads the values of keys, each a Load of its own that may be set as in
	// Load. In a single call for all of them it takes one load slot, and has one
	// LoadTimeout. All else that is said of a [LoaderFunc] holds, for each key: a change
	// of one takes only that one's lease, and what was loaded for it is thrown away, while
	// the others are stored; ctx ends with the cause ErrRevoked only when none is left.
	//
	// The map has the values by key. If the error is nil, a key that is not in it does
	// not exist, and that is remembered. If there is an error, the values in the map
	// are as good as ever, and the other keys have failed with it: none of them is
	// remembered as missing, also if the error is ErrNotFound. Of a load whose
	// NotModified was called the old value stays, whether it is in the map or not. Keys
	// that were not asked for are ignored.
	LoadMany(ctx context.Context, loads []*Load[V]) (map[string]V, error)
}

// BatchLoaderFunc is a plain function as a [BatchLoader], also for single keys.
type BatchLoaderFunc[V any] func(ctx context.Context, keys []string) (map[string]V, error)

// Load implements [Loader].
func (f BatchLoaderFunc[V]) Load(ctx context.Context, load *Load[V]) (V, error) {
	values, err := f(ctx, []string{load.key})
	return answered(values, load.key, partial(err))
}

// LoadMany implements [BatchLoader].
func (f BatchLoaderFunc[V]) LoadMany(ctx context.Context, loads []*Load[V]) (map[string]V, error) {
	keys := make([]string, len(loads))
	for i, load := range loads {
		keys[i] = load.key
	}
	return f(ctx, keys)
}

// answered is what a batch loader has returned for a key.
func answered[V any](values map[string]V, key string, err error) (V, error) {
	v, ok := values[key]
	switch {
	case ok:
		return v, nil
	case err == nil:
		return v, ErrNotFound
	}
	return v, err
}

// partial is the error of the keys that are not in a batch loader's map. It must not
// make them count as missing: which of them are is not known.
func partial(err error) error {
	if !saysNotFound(err) {
		return err
	}
	return fmt.Errorf("herdgate: a batch loader must leave keys that do not exist out of its map and return no error for them, it returned: %v", err) //nolint:errorlint // not to be matched
}

// GetMany is Get for many keys at once. It asks Redis once per node for those that are
// not in the local tier, in one step for their leases, and stores what it has loaded
// in one step, too. What it is granted is loaded by one call of the loader, if that is
// a [BatchLoader], and otherwise by a call for each key, as far as there are load
// slots. It joins what single calls and other batches load, in this process and in the
// fleet, and they join it. A key that is named twice counts once.
//
// The map has the values. A key that is neither in it nor in the error does not exist
// (ErrNotFound). The error is a *[ManyError] with the keys that have failed, each with
// the error that Get would return, ctx's among them; the values of the others are in
// the map all the same. Stale values are served, and refreshed behind, like those of Get,
// and what WithDefault says holds for each key.
func (c *Cache[V]) GetMany(ctx context.Context, keys []string) (map[string]V, error) {
	start := c.gate.now()
	all, _ := c.many(ctx, unique(keys), (*copied[V]).due)
	values := make(map[string]V, len(all))
	var failed []FailedKey
	for _, w := range all {
		r, err := c.answer(w.key, w.result, w.err, start)
		switch {
		case err == nil:
			values[w.key] = r.Value
		case !saysNotFound(err):
			failed = append(failed, FailedKey{Key: w.key, Err: err})
		}
	}
	return values, c.manyFailed(failed, len(all))
}

func (c *Cache[V]) manyFailed(failed []FailedKey, asked int) error {
	if len(failed) == 0 {
		return nil
	}
	return &ManyError{Cache: c.name, Failed: failed, Asked: asked}
}

// WarmOptions say how [Cache.Warm] goes about it. The zero value is ready to use.
type WarmOptions struct {
	// Batch is how many keys are loaded at once, as by one GetMany; 0 is 100.
	Batch int
	// Concurrency is how many batches are under way at once; 0 is 1.
	Concurrency int
	// Progress, if not nil, is told after each batch how many keys of how many are
	// done, failed ones included. It is called by Warm's own goroutine, one call at a time.
	Progress func(done, total int)
}

const defaultWarmBatch = 100

// Warm loads those of the keys that are missing or stale, here or anywhere in the
// fleet, and returns when all are done; several instances that warm the same keys at
// once share the work. It returns a *[ConfigError] for options that cannot be used,
// and else a *[ManyError] with the keys that failed; a key that does not exist has not
// failed. When ctx ends it begins no further batch and returns ctx's error; the loads
// that run go on.
//
// A stale value that is just being refreshed by another instance, or whose last
// refresh has failed and backs off, is left to that.
func (c *Cache[V]) Warm(ctx context.Context, keys []string, options WarmOptions) error {
	check := checker{scope: "WarmOptions."}
	check.positive("Batch", &options.Batch, defaultWarmBatch)
	check.positive("Concurrency", &options.Concurrency, 1)
	if check.err != nil {
		return check.err
	}
	keys = unique(keys)
	batches := make(chan []string)
	type outcome struct {
		keys   int
		failed []FailedKey
	}
	outcomes := make(chan outcome)
	feed, cancel := context.WithCancel(ctx)
	var workers sync.WaitGroup
	defer workers.Wait()
	defer cancel()
	for range options.Concurrency {
		workers.Go(func() {
			for batch := range batches {
				select {
				case outcomes <- outcome{len(batch), c.warm(feed, batch)}:
				case <-feed.Done():
				}
			}
		})
	}
	workers.Go(func() {
		defer close(batches)
		for batch := range slices.Chunk(keys, options.Batch) {
			select {
			case batches <- batch:
			case <-feed.Done():
				return
			}
		}
	})
	var failed []FailedKey
	for done := 0; done < len(keys); {
		select {
		case o := <-outcomes:
			done += o.keys
			failed = append(failed, o.failed...)
			if options.Progress != nil {
				options.Progress(done, len(keys))
			}
		case <-ctx.Done():
			return fmt.Errorf("herdgate: warm %s: ended after %d of %d keys: %w", c.name, done, len(keys), ctx.Err())
		}
	}
	return c.manyFailed(failed, len(keys))
}

// warm is one batch of Warm.
func (c *Cache[V]) warm(ctx context.Context, keys []string) (failed []FailedKey) {
	all, behind := c.many(ctx, keys, (*copied[V]).stale)
	for _, w := range all {
		if w.err != nil && !saysNotFound(w.err) {
			failed = append(failed, FailedKey{Key: w.key, Err: w.err})
		}
	}
	for _, f := range behind {
		_, err := f.Wait(ctx)
		switch {
		case err == nil, saysNotFound(err):
		case errors.Is(err, errNothingNew): // it is left to another instance, or to the end of a back-off
		case errors.Is(err, errRestart): // a change came: a new load is its readers' to start
		default:
			failed = append(failed, FailedKey{Key: f.Key(), Err: err})
		}
	}
	return failed
}

// unique are the keys without those that were there before.
func unique(keys []string) []string {
	known := make(map[string]struct{}, len(keys))
	all := make([]string, 0, len(keys))
	for _, key := range keys {
		if _, twice := known[key]; !twice {
			known[key] = struct{}{}
			all = append(all, key)
		}
	}
	return all
}
