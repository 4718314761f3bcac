package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/herdgate/herdgate/internal/remote"
)

func watchCommand(flags *flag.FlagSet) action {
	var at cacheTarget
	at.declare(flags)
	flags.Lookup("cache").Usage = "only what is about this cache. Default: all"
	beats := flags.Bool("beats", false, "show also the heartbeats of the gates, one a second from each")
	return func(ctx context.Context, args []string, out output, notes io.Writer) error {
		if len(args) > 0 {
			return misused("watch takes no arguments: -cache NAME watches one cache")
		}
		connect := at.connect
		if at.cache == "" {
			connect = at.target.connect
		}
		c, err := connect(ctx)
		if err != nil {
			return err
		}
		defer c.close(ctx)
		w := &watcher{out: out, notes: notes, cache: at.cache, json: at.json, namespace: at.namespace, address: c.address}
		return c.explain(c.Watch(ctx, w, *beats))
	}
}

// watcher prints what comes over the bus, one line each.
type watcher struct {
	out, notes         io.Writer
	cache              string // "" = all
	json               bool
	namespace, address string
}

// heard is a message of the bus, or a heartbeat.
type heard struct {
	Time     time.Time `json:"time"` // of this machine, when it came
	Kind     string    `json:"kind"` // delete, expire, set, clear, tags; wake-up, beat, unknown
	Cache    string    `json:"cache,omitempty"`
	Key      *string   `json:"key,omitempty"`
	Tags     []string  `json:"tags,omitempty"`     // tags: those invalidated
	Instance string    `json:"instance,omitempty"` // the gate that made the change or is alive
	ID       string    `json:"id,omitempty"`       // of the change
	Message  string    `json:"message,omitempty"`  // unknown: all of it
}

func (w *watcher) print(h heard) {
	if w.cache != "" && h.Cache != "" && h.Cache != w.cache {
		return
	}
	h.Time = time.Now()
	if w.json {
		_ = json.NewEncoder(w.out).Encode(h)
		return
	}
	line := fmt.Sprintf("%s  %-7s", h.Time.Format("15:04:05.000"), h.Kind)
	if h.Cache != "" {
		line += "  " + h.Cache
	}
	if h.Key != nil {
		line += " " + strconv.Quote(*h.Key)
	}
	if len(h.Tags) > 0 {
		line += " " + quoted(h.Tags)
	}
	switch {
	case h.Kind == "beat":
		line += "  " + h.Instance
	case h.Instance != "":
		line += "  by " + h.Instance
	}
	if h.Message != "" {
		line += "  " + strconv.Quote(h.Message)
	}
	_, _ = fmt.Fprintln(w.out, line)
}

// Cleared implements remote.Receiver.
func (w *watcher) Cleared(c remote.Cleared) {
	w.print(heard{Kind: "clear", Cache: c.Cache, Instance: c.Instance, ID: c.ID})
}

// TagsRaised implements remote.Receiver.
func (w *watcher) TagsRaised(t remote.TagsRaised) {
	w.print(heard{Kind: "tags", Cache: t.Cache, Tags: t.Tags, Instance: t.Instance, ID: t.ID})
}

// Invalidated implements remote.Receiver.
func (w *watcher) Invalidated(i remote.Invalidation) {
	w.print(heard{Kind: string(i.Op), Cache: i.Cache, Key: &i.Key, Instance: i.Instance, ID: i.ID})
}

// Woken implements remote.Receiver.
func (w *watcher) Woken(cache, key string) { w.print(heard{Kind: "wake-up", Cache: cache, Key: &key}) }

// Beat implements remote.Watcher.
func (w *watcher) Beat(instance string) { w.print(heard{Kind: "beat", Instance: instance}) }

// Unknown implements remote.Watcher.
func (w *watcher) Unknown(message string) { w.print(heard{Kind: "unknown", Message: message}) }

// Confirmed implements remote.Receiver.
func (w *watcher) Confirmed() {
	_, _ = fmt.Fprintf(w.notes, "watching namespace %s on %s\n", w.namespace, w.address)
}

// Lost implements remote.Receiver.
func (w *watcher) Lost(reason error) {
	_, _ = fmt.Fprintf(w.notes, "messages are missed from here on: %v\n", reason)
}
