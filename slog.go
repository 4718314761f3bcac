package herdgate

import (
	"log/slog"
	"sync"
	"time"
)

// logEvery is how long after a line about one cache and kind of event further events
// of that kind are only counted.
const logEvery = 10 * time.Second

// LogTo returns an observer that logs what an operator wants to read:
//
//   - as errors: a loader that failed or ignores its context, a change that failed;
//   - as warnings: Redis or a locker that does not answer, messages that may be missed, a lease
//     lost or not renewed, a value not stored, a wait that timed out, an entry that
//     cannot be used;
//   - as information: messages that arrive again, an entry of a newer version.
//
// All else, like calls and their outcomes, is for metrics. Of one kind and cache there
// is at most one line in 10 s; it says with suppressed how many events before it had
// none. Those after the last line are only in [Stats]. Messages that may be missed, or
// arrive again, are told each time.
//
// Lines have the attributes cache, key, took and error where the event has them. To
// keep keys out of a log, drop or hash "key" in the ReplaceAttr of its handler, and
// look at what the errors of your loaders say. A nil logger is slog.Default().
func LogTo(logger *slog.Logger) Observer {
	if logger == nil {
		logger = slog.Default()
	}
	return &logObserver{logger: logger, told: map[logged]*logState{}}
}

type logObserver struct {
	logger *slog.Logger

	mu   sync.Mutex           // protects told
	told map[logged]*logState // a few for each cache
}

// logged is what lines are counted by.
type logged struct {
	cache string
	kind  EventKind
}

type logState struct {
	next   time.Time // until then there is no line
	silent int       // events without a line since the last
}

// Observe implements [Observer].
func (l *logObserver) Observe(e Event) {
	write, message := line(e.Kind)
	if write == nil {
		return
	}
	silent, ok := l.due(e)
	if !ok {
		return
	}
	attrs := make([]any, 0, 5)
	if e.Cache != "" {
		attrs = append(attrs, slog.String("cache", e.Cache), slog.String("key", e.Key))
	}
	if e.Duration > 0 {
		attrs = append(attrs, slog.Duration("took", e.Duration))
	}
	if e.Err != nil {
		attrs = append(attrs, slog.Any("error", e.Err))
	}
	if silent > 0 {
		attrs = append(attrs, slog.Int("suppressed", silent))
	}
	write(l.logger, message, attrs...)
}

// due reports whether an event gets a line, and how many before it got none. The bus
// and Redis are told of each time: of a loss and a confirmation the reader must know
// which was the last, and both are as rare as reconnecting makes them.
func (l *logObserver) due(e Event) (silent int, ok bool) {
	switch e.Kind {
	case EventBusLost, EventBusConfirmed, EventRedisDown, EventRedisUp:
		return 0, true
	default:
	}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	of := logged{e.Cache, e.Kind}
	s := l.told[of]
	if s == nil {
		s = &logState{}
		l.told[of] = s
	}
	if now.Before(s.next) {
		s.silent++
		return 0, false
	}
	silent, s.silent, s.next = s.silent, 0, now.Add(logEvery)
	return silent, true
}

// line is how events of a kind are logged: by which method, and with what message.
// nil: not at all.
func line(kind EventKind) (write func(*slog.Logger, string, ...any), message string) {
	switch kind {
	case EventLoadFailed:
		return (*slog.Logger).Error, "herdgate: load failed"
	case EventAbandoned:
		return (*slog.Logger).Error, "herdgate: loader ignores the end of its context and was abandoned"
	case EventChangeFailed:
		return (*slog.Logger).Error, "herdgate: change failed, or may have: the old value may live on"
	case EventDegraded:
		return (*slog.Logger).Warn, "herdgate: Redis did not answer, went on without it"
	case EventRedisDown:
		return (*slog.Logger).Warn, "herdgate: Redis is down, going on without it"
	case EventRedisUp:
		return (*slog.Logger).Info, "herdgate: Redis is back"
	case EventJournaled:
		return (*slog.Logger).Warn, "herdgate: change has not reached Redis, it is made later"
	case EventJournalFull:
		return (*slog.Logger).Warn, "herdgate: too many changes have not reached Redis, the cache is cleared when it is back"
	case EventNotReplicated:
		return (*slog.Logger).Warn, "herdgate: change is not on enough replicas, a failover may lose it"
	case EventResent:
		return (*slog.Logger).Info, "herdgate: Redis has another master, recent changes are made there once more"
	case EventForgotten:
		return (*slog.Logger).Warn, "herdgate: too many changes to make all of them once more after a failover"
	case EventBusLost:
		return (*slog.Logger).Warn, "herdgate: invalidations may be missed, nothing local is fresh"
	case EventRenewalFailed:
		return (*slog.Logger).Warn, "herdgate: renewal of a lease failed, it is tried again"
	case EventLeaseLost:
		return (*slog.Logger).Warn, "herdgate: lease lost while the loader ran, another process may load beside it"
	case EventLockerFailed:
		return (*slog.Logger).Warn, "herdgate: Options.Locker did not answer, Redis alone decides who loads"
	case EventCommitRefused:
		return (*slog.Logger).Warn, "herdgate: loaded value not stored, its lease was gone"
	case EventCommitFailed:
		return (*slog.Logger).Warn, "herdgate: loaded value not stored"
	case EventWaitTimeout:
		return (*slog.Logger).Warn, "herdgate: waited for longer than WaitTimeout"
	case EventBadPayload:
		return (*slog.Logger).Warn, "herdgate: entry cannot be used, it is rebuilt"
	case EventBusConfirmed:
		return (*slog.Logger).Info, "herdgate: invalidations arrive"
	case EventNewerEntry:
		return (*slog.Logger).Info, "herdgate: entry of a newer version, loading without it"
	default: // metrics tell of it
		return nil, ""
	}
}
