package remote

import (
	"context"
	"strconv"
	"strings"
	"time"
)

// tagKeys are the sequence of a cache's tags and the keys of tags, all in one slot.
func (s *Store) tagKeys(cache string, tags []string) []string {
	sequence := s.namespace + ":t:{" + cache + "}"
	keys := make([]string, 1, 1+len(tags))
	keys[0] = sequence
	for _, tag := range tags {
		keys = append(keys, sequence+":"+tag)
	}
	return keys
}

// Tags reads the number of a cache's tag sequence and those of tags, in their order.
// A tag is kept for life from now on; one that is not there gets the number of the
// sequence, as nothing tells any more when it was last invalidated.
func (s *Store) Tags(ctx context.Context, cache string, tags []string, life time.Duration) (sequence uint64, numbers []uint64, err error) {
	return s.runTags(ctx, cache, tags, "read", life, "", 0)
}

// RaiseTags invalidates what has one of the tags, and tells everybody. It may be sent
// twice. It returns the number that the tags have from now on, which is above the one that
// is known, with an error that matches ErrNotReplicated if too few replicas have it.
func (s *Store) RaiseTags(ctx context.Context, cache, id string, tags []string, life time.Duration, known uint64) (uint64, error) {
	var message strings.Builder
	message.WriteString("T " + s.instance + " " + id + " " + cache + " ")
	for _, tag := range tags {
		message.WriteString(strconv.Itoa(len(tag)) + ":" + tag)
	}
	sequence, _, err := s.runTags(ctx, cache, tags, "raise", life, message.String()+" ", known)
	return sequence, err
}

func (s *Store) runTags(ctx context.Context, cache string, tags []string, op string, life time.Duration, message string, known uint64) (sequence uint64, numbers []uint64, err error) {
	px := millis(life)
	numbers, err = retried(ctx, s.route(ctx, s.tagKeys(cache, nil)[0]).scripts(), ordinary, func(ctx context.Context) ([]uint64, error) {
		run := s.run
		if op == "raise" {
			run = s.runChange
		}
		v, err := run(ctx, s.tags, again, s.tagKeys(cache, tags), op, px, s.channel, message, known, leapAhead())
		return readReply(v, err, func(v any) ([]uint64, error) {
			r := newReply(v)
			numbers := make([]uint64, 1+len(tags))
			for i := range numbers {
				numbers[i] = uint64(r.integer(i))
			}
			return numbers, r.err
		})
	})
	if len(numbers) == 0 {
		return 0, nil, err
	}
	return numbers[0], numbers[1:], err
}

// cutTags reads the tags at the front of a message.
func cutTags(message string) (tags []string, rest string, ok bool) {
	for {
		length, after, found := strings.Cut(message, ":")
		if !found || strings.HasPrefix(message, " ") {
			rest, ok = strings.CutPrefix(message, " ")
			return tags, rest, ok
		}
		n, err := strconv.Atoi(length)
		if err != nil || n < 0 || n > len(after) {
			return nil, "", false
		}
		tags, message = append(tags, after[:n]), after[n:]
	}
}
