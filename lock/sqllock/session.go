package sqllock

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"database/sql/driver"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/herdgate/herdgate/lock"
)

// DefaultCheckEvery is the time between two looks at a session.
const DefaultCheckEvery = time.Second

// SessionOptions say how session locks are kept. Dialect is required.
type SessionOptions struct {
	// Dialect is PostgreSQL or MySQL.
	Dialect Dialect
	// Namespace is what names belong to. Services that lock the same things share it. It may be empty.
	Namespace string
	// CheckEvery is the time between two looks at whether a session still holds its lock, and the most that one look
	// may take. Zero is DefaultCheckEvery.
	CheckEvery time.Duration
}

// Sessions makes locks that belong to a session of the database: PostgreSQL's advisory locks, GET_LOCK of MySQL and
// MariaDB. SQLite has none. Make it with NewSessions; its methods may be called concurrently.
//
// These locks have no TTL, so they are no lock.Backend. Each one, and everybody who waits for one, uses up a connection.
// A lock is free when the database ends the session: at once when its process dies; when the process is frozen or cut off,
// only when the database notices, which is a matter of its settings, by default of hours (tcp_keepalives_idle,
// idle_session_timeout; wait_timeout, and the keepalive of the system: a frozen process's system goes on answering that).
// The holder is told of a loss by looking at the session now and then, which may be after somebody else got the lock.
// There is no token. So they are good for work that is wasteful, not wrong, when done twice, and for what is done in the
// session itself, by [Session.Do]: that is lost with the session.
//
// Advisory locks belong to one database of a PostgreSQL server and have a number, 64 bits of a hash of namespace and
// name: two names with one number, which is unlikely before there are billions, exclude each other, no more. The locks of
// MySQL belong to the whole server. Both are of one server, and not replicated. A pooler that gives each transaction
// another session, like PgBouncer's transaction mode, breaks them.
type Sessions struct {
	db   *sql.DB
	opts SessionOptions
}

// NewSessions makes session locks in db, which stays the caller's to close. Nothing is sent yet. The error names what is
// out of range, and a Dialect that the driver of db does not speak, if it is a driver that is known; it matches
// errors.ErrUnsupported for SQLite.
func NewSessions(db *sql.DB, opts SessionOptions) (*Sessions, error) {
	if db == nil {
		return nil, errNoDB
	}
	if err := opts.Dialect.validate(); err != nil {
		return nil, err
	}
	if opts.Dialect == SQLite {
		return nil, fmt.Errorf("sqllock: SQLite has no locks of sessions: %w", errors.ErrUnsupported)
	}
	if err := opts.Dialect.fits(db); err != nil {
		return nil, err
	}
	if opts.CheckEvery == 0 {
		opts.CheckEvery = DefaultCheckEvery
	}
	if opts.CheckEvery < time.Millisecond {
		return nil, fmt.Errorf("sqllock: CheckEvery is %v: must be at least %v, or 0 for the default of %v", opts.CheckEvery, time.Millisecond, DefaultCheckEvery)
	}
	return &Sessions{db: db, opts: opts}, nil
}

// maxLockName is the longest name of a lock in MySQL.
const maxLockName = 64

// key is what the database calls the lock: a number in PostgreSQL, a string in MySQL.
func (s *Sessions) key(name string) any {
	sum := sha256.Sum256([]byte(s.opts.Namespace + "\x00" + name))
	if s.opts.Dialect == PostgreSQL {
		return int64(binary.BigEndian.Uint64(sum[:]))
	}
	// MySQL ignores case, and knows only so many characters.
	odd := func(r rune) bool { return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789._-", r) }
	if plain := s.opts.Namespace + "/" + name; len(plain) <= maxLockName && !strings.ContainsFunc(s.opts.Namespace+name, odd) {
		return plain
	}
	return "#" + hex.EncodeToString(sum[:])[:maxLockName-1] // which none of the plain ones begins with
}

// TryLock asks once and does not wait. The error matches lock.ErrNotAcquired if somebody else holds the lock; any other
// error is one of the database, or ctx's. The lock outlives ctx.
func (s *Sessions) TryLock(ctx context.Context, name string) (*Session, error) {
	return s.lock(ctx, name, s.try)
}

// Lock waits for the lock, as long as ctx allows; those who wait get it in their order. The error is one of the database,
// or ctx's, and matches lock.ErrNotAcquired too if ctx ended while somebody else held the lock. The lock outlives ctx.
func (s *Sessions) Lock(ctx context.Context, name string) (*Session, error) {
	return s.lock(ctx, name, s.wait)
}

// acquireFunc asks for a lock in a session, and tells whether it was given.
type acquireFunc func(ctx context.Context, conn *sql.Conn, key any) (got bool, err error)

func (s *Sessions) lock(ctx context.Context, name string, acquire acquireFunc) (*Session, error) {
	if name == "" {
		return nil, errors.New("sqllock: the name is empty: must be at least one byte")
	}
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("sqllock: lock %q: %w", name, err)
	}
	key := s.key(name)
	got, err := acquire(ctx, conn, key)
	switch {
	case err != nil:
		// Whether the session has the lock is not known: it must not come back to the pool with it.
		discard(conn)
		return nil, fmt.Errorf("sqllock: lock %q: %w", name, s.opts.Dialect.blame(err))
	case !got:
		_ = conn.Close() // gives it back to the pool
		return nil, &lock.ContendedError{Name: name}
	}
	session := &Session{
		name: name, key: key, opts: s.opts, conn: conn,
		turn: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}), checked: make(chan struct{}),
	}
	go session.check(context.WithoutCancel(ctx))
	return session, nil
}

func (s *Sessions) try(ctx context.Context, conn *sql.Conn, key any) (got bool, err error) {
	if s.opts.Dialect == MySQL {
		return getLock(ctx, conn, key, 0)
	}
	err = conn.QueryRowContext(ctx, "SELECT pg_try_advisory_lock($1)", key).Scan(&got)
	return got, err
}

func (s *Sessions) wait(ctx context.Context, conn *sql.Conn, key any) (got bool, err error) {
	if got, err := s.try(ctx, conn, key); got || err != nil {
		return got, err
	}
	if s.opts.Dialect == MySQL {
		for !got && err == nil {
			got, err = getLock(ctx, conn, key, maxWait)
		}
	} else {
		_, err = conn.ExecContext(ctx, "SELECT pg_advisory_lock($1)", key)
	}
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", lock.ErrNotAcquired, ctx.Err()) // for it was held when the wait began
	}
	return err == nil, err
}

// maxWait is how many seconds one GET_LOCK waits.
const maxWait = 60 * 60

func getLock(ctx context.Context, conn *sql.Conn, key any, seconds int) (got bool, err error) {
	var reply sql.NullBool
	err = conn.QueryRowContext(ctx, "SELECT GET_LOCK(?, ?)", key, seconds).Scan(&reply)
	if err == nil && !reply.Valid {
		err = errors.New("sqllock: GET_LOCK failed in the database")
	}
	return reply.Bool, err
}

// discard ends a session: a connection that its driver calls bad does not come back to the pool.
func discard(conn *sql.Conn) {
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	_ = conn.Close() // it is gone
}

// Session is a lock that a session of the database holds, until Unlock, or until the session ends. Its methods may be
// called concurrently. One goroutine looks whether the session lives, until Unlock.
type Session struct {
	name string
	key  any
	opts SessionOptions
	conn *sql.Conn

	turn    chan struct{} // of one place: whose turn it is to use conn
	stop    chan struct{} // closed by Unlock
	done    chan struct{} // closed when err is set
	checked chan struct{} // closed when check has returned

	mu  sync.Mutex // protects err
	err error      // why the lock is not held any more
}

// Name is the name of the lock.
func (s *Session) Name() string { return s.name }

// Done is closed when the lock is not held any more; Err says why. When the session has died that is noticed within twice
// CheckEvery, beside the time that Do takes.
func (s *Session) Done() <-chan struct{} { return s.done }

// Err is nil while the lock is held, as far as is known. Then it matches lock.ErrLost, or lock.ErrReleased.
func (s *Session) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// end sets why the lock is not held any more, unless that is known. It returns whether it did.
func (s *Session) end(err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return false
	}
	s.err = err
	close(s.done)
	return true
}

// Do calls f with the session that holds the lock, for transactions whose commit proves that it was held until then: when
// the session dies, what it had not committed is void. f must not keep conn, close it, or change its settings. While f
// runs nobody looks at the session, and other calls of Do and Unlock wait. It returns what f returns, or ctx's error, or
// that of a lock that is not held any more.
func (s *Session) Do(ctx context.Context, f func(ctx context.Context, conn *sql.Conn) error) error {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-s.turn }()
	if err := s.Err(); err != nil {
		return err
	}
	return f(ctx, s.conn)
}

// Unlock frees the lock. It works when ctx is dead: it takes the values of ctx, and at most CheckEvery beside what Do
// takes. The error matches lock.ErrLost if the lock was lost before. When the database gives no answer the session is
// ended, and the lock with it, at the latest when the database notices. It may be called again.
func (s *Session) Unlock(ctx context.Context) error {
	s.turn <- struct{}{} // only check and Do are before it
	defer func() { <-s.turn }()
	if !s.end(lock.ErrReleased) {
		if err := s.Err(); !errors.Is(err, lock.ErrReleased) {
			return err
		}
		return nil
	}
	close(s.stop)
	<-s.checked
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.opts.CheckEvery)
	defer cancel()
	query := "SELECT RELEASE_LOCK(?)"
	if s.opts.Dialect == PostgreSQL {
		query = "SELECT pg_advisory_unlock($1)"
	}
	var released sql.NullBool
	err := s.conn.QueryRowContext(ctx, query, s.key).Scan(&released)
	switch {
	case err != nil:
		discard(s.conn)
		return fmt.Errorf("sqllock: unlock %q: %w", s.name, err)
	case !released.Bool:
		discard(s.conn)
		return fmt.Errorf("sqllock: unlock %q: %w", s.name, lock.ErrNotHeld)
	}
	return s.conn.Close()
}

// check looks at the session until it has lost the lock, or Unlock ends it.
func (s *Session) check(ctx context.Context) {
	defer close(s.checked)
	ticker := time.NewTicker(s.opts.CheckEvery)
	defer ticker.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-ticker.C:
		}
		select {
		case <-s.stop: // by an Unlock that has the turn and waits for us
			return
		case s.turn <- struct{}{}:
		}
		err := s.look(ctx)
		if err != nil {
			s.end(fmt.Errorf("%w: %q: %w", lock.ErrLost, s.name, err))
			discard(s.conn)
		}
		<-s.turn
		if err != nil {
			return
		}
	}
}

// look asks the database whether the session holds the lock.
func (s *Session) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.opts.CheckEvery)
	defer cancel()
	query, args := "SELECT COALESCE(IS_USED_LOCK(?) = CONNECTION_ID(), 0)", []any{s.key}
	if key, ok := s.key.(int64); ok {
		query = "SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND granted" +
			" AND objsubid = 1 AND classid::bigint = $1 AND objid::bigint = $2" +
			" AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
		args = []any{int64(uint64(key) >> 32), int64(uint64(key) & 0xffffffff)}
	}
	var held bool
	if err := s.conn.QueryRowContext(ctx, query, args...).Scan(&held); err != nil {
		return err
	}
	if !held {
		return lock.ErrNotHeld
	}
	return nil
}
