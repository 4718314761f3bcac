package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// page writes lines of a name and what is to be said of it.
type page struct{ io.Writer }

func (p page) line(name, format string, args ...any) {
	_, _ = fmt.Fprintf(p, "  %-10s %s\n", name, fmt.Sprintf(format, args...))
}

const timeFormat = "2006-01-02 15:04:05.000 MST"

// write tells the report to a person.
func (r *report) write(out io.Writer) {
	p := page{out}
	_, _ = fmt.Fprintf(p, "%s %q in namespace %s, %s by Redis's clock\n", r.Cache, r.Key, r.Namespace, r.ServerTime.Format(timeFormat))
	if r.Generation == 0 {
		_, _ = fmt.Fprintf(p, "the cache has no generation: nobody has read it since Redis was emptied\n\n")
	} else {
		_, _ = fmt.Fprintf(p, "the cache was cleared, or first used, %s\n\n", moment(time.Duration(r.Generation)*time.Microsecond).Format(timeFormat))
	}
	r.Entry.write(p)
	_, _ = fmt.Fprintln(p)
	r.Build.write(p)
}

func (e entry) write(p page) {
	_, _ = fmt.Fprintf(p, "entry  %s\n", visible(e.RedisKey))
	if e.State == "absent" {
		p.line("state", "absent: nothing is stored")
		return
	}
	p.line("state", "%s", e.story())
	if h := e.Header; h != nil {
		h.write(p)
	}
	p.line("TTL", "%s", ttlText(e.TTL))
	if e.Type != "string" {
		return
	}
	p.line("size", "%d bytes", e.Bytes)
	e.Payload.write(p)
}

// story is the state, and what services do about it.
func (e entry) story() string {
	switch {
	case e.State == "unusable":
		return "unusable: " + e.Why
	case e.State == "early":
		return "fresh, and one caller refreshes it early"
	case e.State == "fresh" && e.Header.Negative:
		return "fresh: the source has nothing for this key (not found)"
	case e.State == "fresh":
		return "fresh"
	}
	story := "stale: served while one caller refreshes it"
	if e.Header.Hard <= e.Header.Fresh {
		story = "stale, without a stale window: the next caller loads it"
	}
	if e.Why != "" {
		story += " (" + e.Why + ")"
	}
	return story
}

func (h *header) write(p page) {
	switch {
	case h.Age == nil:
		p.line("age", "not known: marked stale")
	case h.BuiltAt == nil:
		p.line("age", "%s", h.Age)
	default:
		p.line("age", "%s, stored %s", h.Age, h.BuiltAt.Format(timeFormat))
	}
	p.line("fresh", "%s", span(h.Fresh, h.FreshLeft))
	if h.Early < h.Fresh { // else none was drawn
		p.line("early", "%s", span(h.Early, h.EarlyLeft))
	}
	p.line("hard", "%s", span(h.Hard, h.HardLeft))
	flags := "no flags"
	if len(h.Flags) > 0 {
		flags = "flags " + strings.Join(h.Flags, " ")
	}
	p.line("header", "format 1, codec %s, schema %d, %s", h.Codec, h.Schema, flags)
	p.line("version", "%s", h.Version)
	if len(h.Tags) > 0 {
		p.line("tags", "%s", quoted(h.Tags))
	}
	if h.Token != "" {
		p.line("token", "%q", h.Token)
	}
}

func quoted(names []string) string {
	var all []string
	for _, name := range names {
		all = append(all, strconv.Quote(name))
	}
	return strings.Join(all, " ")
}

// span is a part of an entry's life, and what is left of it.
func span(of millis, left *millis) string {
	switch {
	case left == nil:
		return of.String()
	case *left < 0:
		return fmt.Sprintf("%s, over since %s", of, -*left)
	}
	return fmt.Sprintf("%s, %s left", of, *left)
}

func ttlText(ttl *millis) string {
	if ttl == nil {
		return "none: it never expires, so no herdgate wrote it"
	}
	return ttl.String()
}

func (b build) write(p page) {
	_, _ = fmt.Fprintf(p, "build  %s\n", visible(b.RedisKey))
	switch b.State {
	case "nothing":
		p.line("state", "nothing: nobody loads it, and no load failed lately")
		return
	case "foreign":
		p.line("state", "foreign: %s", b.Why)
		return
	case "lease":
		p.line("state", "lease: somebody loads it")
		p.line("owner", "%s", b.Owner)
		waited := "no other process waits for its end"
		if b.Waited {
			waited = "another process waits for its end"
		}
		p.line("waiters", "%s", waited)
	case "failed":
		p.line("state", "failed: the last load ended with %s", b.Code)
		if *b.RetryIn > 0 {
			p.line("retry", "in %s", *b.RetryIn)
		} else {
			p.line("retry", "the next caller may try")
		}
	case "cooling":
		p.line("state", "cooling: what is left of MinRebuildInterval since the last load began")
	case "pass":
		p.line("state", "pass: each process loads it for itself, and nobody stores it")
	}
	if b.Failures > 0 {
		p.line("failures", "%d in a row", b.Failures)
	}
	p.line("granted", "%s, nonce %d", b.Granted.Format(timeFormat), b.Nonce)
	p.line("TTL", "%s", ttlText(b.TTL))
}

// visible is text for a terminal: what could steer one is escaped, as it comes from
// whoever can write to Redis.
func visible(text string) string {
	if quoted := strconv.Quote(text); strings.Contains(quoted, `\`) {
		return quoted
	}
	return text
}
