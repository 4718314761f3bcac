package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/herdgate/herdgate/internal/remote"
)

func deleteCommand(flags *flag.FlagSet) action {
	return changeCommand(flags, remote.OpDelete, "deleted")
}

func expireCommand(flags *flag.FlagSet) action {
	return changeCommand(flags, remote.OpExpire, "expired")
}

func changeCommand(flags *flag.FlagSet, op remote.Op, done string) action {
	var at cacheTarget
	at.declare(flags)
	interval := flags.Duration("min-rebuild-interval", 100*time.Millisecond, "Policy.MinRebuildInterval of the cache: if somebody loads the key just now, that long from\nthe begin of that load nobody begins another")
	return func(ctx context.Context, keys []string, out output, _ io.Writer) error {
		if len(keys) == 0 {
			return misused("which keys are to be %s?", done)
		}
		if *interval <= 0 {
			return misused("-min-rebuild-interval is %v: want a positive duration", *interval)
		}
		c, err := at.connect(ctx)
		if err != nil {
			return err
		}
		defer c.close(ctx)
		var failed []error
		for _, key := range keys {
			told, err := c.change(ctx, remote.Change{ID: instanceName(), Op: op, Cache: at.cache, Key: key, Interval: *interval})
			if err != nil {
				failed = append(failed, err)
				continue
			}
			told.Done = done
			at.print(out, told)
		}
		return errors.Join(failed...)
	}
}

// changed is what is told of a change that was made.
type changed struct {
	Cache  string `json:"cache"`
	Key    string `json:"key"`
	Done   string `json:"done"`
	Stored bool   `json:"stored"` // Redis had something at the entry's key before
	Held   bool   `json:"held"`   // somebody was loading it: that load will not be stored
}

// change makes a change as a gate does: with the script that also tells every gate.
func (c *connection) change(ctx context.Context, ch remote.Change) (changed, error) {
	failed := func(err error, state string) error {
		return fmt.Errorf("%s %s %q: %w%s", ch.Op, ch.Cache, ch.Key, c.explain(err), state)
	}
	before, err := c.Inspect(ctx, ch.Cache, ch.Key)
	if err != nil {
		return changed{}, failed(err, "; nothing was changed")
	}
	switch result, err := c.Change(ctx, before.Keys, ch); {
	case err != nil:
		return changed{}, failed(err, "; it may still have happened: run it again")
	case result != remote.Done:
		return changed{}, failed(remote.ErrNoAnswer, "; nothing was changed")
	}
	b, _ := remote.ParseBuild(before.Build.Value)
	return changed{Cache: ch.Cache, Key: ch.Key, Stored: before.Entry.Type != "", Held: b.State == remote.Held}, nil
}

func (t *cacheTarget) print(out io.Writer, told changed) {
	if t.json {
		_ = json.NewEncoder(out).Encode(told) // as fmt: nobody reads on
		return
	}
	note := ""
	if !told.Stored {
		note = "; Redis had nothing stored for it"
	}
	if told.Held {
		note += "; somebody was loading it, and that load will not be stored"
	}
	_, _ = fmt.Fprintf(out, "%s %s %s%s\n", told.Done, told.Cache, strconv.Quote(told.Key), note)
}
