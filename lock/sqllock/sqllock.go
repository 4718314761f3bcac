package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/herdgate/herdgate/lock"
)

const (
	// DefaultTable is the table of locks.
	DefaultTable = "herdgate_locks"
	// DefaultIdle is how long Prune keeps a lock that is not held.
	DefaultIdle = 7 * 24 * time.Hour
	// MinIdle is the least that Prune can be told.
	MinIdle = time.Hour
)

const (
	// tries is how often a statement is sent that the database undid; about a second, with the pauses.
	tries = 25
	// probes is how often a row is found locked until it is another transaction that has it, not a statement that comes
	// and goes.
	probes = 6
)

// Options say how locks are kept. Dialect is required.
type Options struct {
	Dialect Dialect
	// Table is the table of locks, see Schema. It matches [a-z_][a-z0-9_]*, with that of a schema and a dot before it if
	// need be. Services that lock the same things share it. Empty is DefaultTable.
	Table string
}

// Backend is a lock.Backend in a table, with fence tokens. Make it with New; its methods may be called concurrently. It
// has no goroutines and needs no closing.
//
// A lock that nobody holds takes two statements, one that is held takes one, which reads and locks nothing.
type Backend struct {
	db      *sql.DB
	dialect Dialect
	table   string // quoted
	sql     statements
}

var _ lock.Backend = (*Backend)(nil)

var (
	errNoDB = errors.New("sqllock: the database is nil: must be a *sql.DB")
	errOpen = errors.New("sqllock: autocommit is off in the session: must be on, or nobody would see the lock and no commit keep it")
	errLate = errors.New("sqllock: the statement waited in the database until it was too late for it")
)

// New makes a backend that uses db, which stays the caller's to close. Nothing is sent yet. The error names what is out
// of range, and a Dialect that the driver of db does not speak, if it is a driver that is known.
func New(db *sql.DB, opts Options) (*Backend, error) {
	if db == nil {
		return nil, errNoDB
	}
	if err := opts.Dialect.validate(); err != nil {
		return nil, err
	}
	if err := opts.Dialect.fits(db); err != nil {
		return nil, err
	}
	if opts.Table == "" {
		opts.Table = DefaultTable
	}
	table, err := opts.Dialect.table("Table", opts.Table)
	if err != nil {
		return nil, err
	}
	return &Backend{db: db, dialect: opts.Dialect, table: table, sql: opts.Dialect.statements(table)}, nil
}

// Schema is the statement that makes the table, for migrations. It does nothing if there is one.
func (b *Backend) Schema() string { return b.dialect.schema(b.table) }

// CreateTable runs Schema. Several processes may do so at a time.
func (b *Backend) CreateTable(ctx context.Context) error {
	err := retry(ctx, tries, func() error {
		_, err := b.db.ExecContext(ctx, b.Schema())
		return err
	}, transient, duplicate)
	if err != nil {
		return fmt.Errorf("sqllock: create table: %w", b.dialect.blame(err))
	}
	return nil
}

// Capabilities implements lock.Backend.
func (*Backend) Capabilities() lock.Capabilities { return lock.Capabilities{Fence: true} }

// Acquire implements lock.Backend. The token is the database's time in microseconds or the last token + 1, what is more.
//
// A lock whose holder died, or lost it, stays his for as long as a transaction of his lasts that Guard is in. Until then
// others are told that it is held.
func (b *Backend) Acquire(ctx context.Context, req lock.Request) (lock.Grant, error) {
	if err := req.Validate(); err != nil {
		return lock.Grant{}, err
	}
	p := params{name: column(req.Name), owner: column(req.Owner), ttl: micros(req.TTL)}
	if err := b.look(ctx, p); err != nil {
		return lock.Grant{}, b.refusal(req.Name, err)
	}
	var token int64
	err := retry(ctx, tries, func() error {
		sent, limit := time.Now(), limit(ctx, req.TTL)
		p.limit = micros(limit)
		var err error
		token, err = b.take(ctx, p)
		if err == nil && token == 0 && time.Since(sent) >= limit {
			return errLate
		}
		return err
	}, transient)
	switch {
	case err != nil:
		return lock.Grant{}, b.refusal(req.Name, err)
	case token == 0:
		return lock.Grant{}, &lock.ContendedError{Name: req.Name}
	}
	return lock.Grant{Token: uint64(token)}, nil
}

// refusal makes what look found, or a row that is locked, a ContendedError. If there is no table it says how to make one,
// and if the dialect is another one's it says so.
func (b *Backend) refusal(name string, err error) error {
	if held := (*heldError)(nil); errors.As(err, &held) {
		return &lock.ContendedError{Name: name, RetryAfter: held.left}
	}
	if b.dialect.isForeign(err) {
		return b.dialect.blame(err) // though it may say that there is no table
	}
	switch classify(err) {
	case waited:
		return &lock.ContendedError{Name: name}
	case missing:
		return fmt.Errorf("sqllock: there is no table %s: must be made by CreateTable, or by Schema in a migration: %w", b.table, err)
	default:
		return err
	}
}

// heldError says that somebody else holds the lock.
type heldError struct{ left time.Duration }

func (*heldError) Error() string { return "sqllock: held" }

// look returns nil if the lock looks free, or ours, without a write and, if it is held, without waiting for a lock on its
// row: waiters ask often, and a transaction that Guard is in may last.
func (b *Backend) look(ctx context.Context, p params) error {
	var owner string
	var left int64
	err := retry(ctx, tries, func() error {
		return b.db.QueryRowContext(ctx, b.sql.peek.text, b.sql.peek.args(p)...).Scan(&owner, &left)
	}, transient)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil
	case err != nil:
		return err
	case owner == p.owner, owner == "":
		return nil
	case left > 0:
		return &heldError{time.Duration(min(left, math.MaxInt64/1000)) * time.Microsecond}
	case b.dialect == SQLite:
		return nil
	}
	// It expired. If a transaction of its holder is still guarded by it, taking it would wait in the database, where no
	// end of a ctx is noticed, and each waiter's next try would wait there as well, on a connection of its own.
	return retry(ctx, probes, func() error {
		var token int64
		err := b.db.QueryRowContext(ctx, b.sql.probe.text, b.sql.probe.args(p)...).Scan(&token)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		return err
	}, transient, waited)
}

// take returns the token of the grant, 0 if there is none.
func (b *Backend) take(ctx context.Context, p params) (token int64, err error) {
	args := b.sql.take.args(p)
	if b.dialect == MySQL {
		result, err := b.db.ExecContext(ctx, b.sql.take.text, args...)
		if classify(err) == open {
			return 0, fmt.Errorf("%w: %w", errOpen, err)
		}
		if err != nil {
			return 0, err
		}
		return result.LastInsertId()
	}
	err = b.db.QueryRowContext(ctx, b.sql.take.text, args...).Scan(&token)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return token, err
}

// Renew implements lock.Backend.
func (b *Backend) Renew(ctx context.Context, claim lock.Claim, ttl time.Duration) error {
	if err := lock.ValidateTTL(ttl); err != nil {
		return err
	}
	p := claimed(claim)
	p.ttl = micros(ttl)
	return retry(ctx, tries, func() error {
		sent, limit := time.Now(), limit(ctx, ttl)
		p.limit = micros(limit)
		err := b.change(ctx, b.sql.renew, p, b.renewed)
		if errors.Is(err, lock.ErrNotHeld) && time.Since(sent) >= limit {
			return errLate
		}
		return err
	}, transient)
}

// Release implements lock.Backend. The row stays, with its token, until Prune.
func (b *Backend) Release(ctx context.Context, claim lock.Claim) error {
	return retry(ctx, tries, func() error {
		return b.change(ctx, b.sql.release, claimed(claim), sql.Result.RowsAffected)
	}, transient)
}

// renewed tells whether a renewal has found its row, 0 if not.
func (b *Backend) renewed(result sql.Result) (int64, error) {
	if b.dialect == MySQL {
		return result.LastInsertId()
	}
	return result.RowsAffected()
}

// change runs a statement that changes the row of a claim, or returns lock.ErrNotHeld if count says that there is none.
func (b *Backend) change(ctx context.Context, s statement, p params, count func(sql.Result) (int64, error)) error {
	result, err := b.db.ExecContext(ctx, s.text, s.args(p)...)
	if err != nil {
		return err
	}
	n, err := count(result)
	if err == nil && n == 0 {
		return lock.ErrNotHeld
	}
	return err
}

// Prune deletes the rows of locks that nobody holds and whose last grant is longer ago than idle, and returns how many. It
// may run at any time, beside other calls. Tokens of a name that comes back go on rising unless the clock was set back by
// more than idle. Zero is DefaultIdle; it is at least MinIdle.
func (b *Backend) Prune(ctx context.Context, idle time.Duration) (deleted int64, err error) {
	if idle == 0 {
		idle = DefaultIdle
	}
	if idle < MinIdle {
		return 0, fmt.Errorf("sqllock: idle is %v: must be at least %v, or 0 for the default of %v", idle, MinIdle, DefaultIdle)
	}
	p := params{idle: micros(idle)}
	names, err := b.idle(ctx, p)
	if err != nil {
		return 0, fmt.Errorf("sqllock: prune: %w", err)
	}
	// One by one: a DELETE of many would lock all rows that MySQL looks at, and renewals would wait for it.
	for _, p.name = range names {
		err := retry(ctx, tries, func() error {
			result, err := b.db.ExecContext(ctx, b.sql.prune.text, b.sql.prune.args(p)...)
			if err != nil {
				return err
			}
			n, err := result.RowsAffected()
			deleted += n
			return err
		}, transient)
		if err != nil {
			return deleted, fmt.Errorf("sqllock: prune: %w", err)
		}
	}
	return deleted, nil
}

func (b *Backend) idle(ctx context.Context, p params) (names []string, err error) {
	rows, err := b.db.QueryContext(ctx, b.sql.idle.text, b.sql.idle.args(p)...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }() // Err has what is wrong
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, rows.Err()
}

func claimed(c lock.Claim) params {
	return params{name: column(c.Name), owner: column(c.Owner), token: int64(c.Token)}
}

// limit is how long a statement may wait in the database. After ctx nobody reads its answer, and after the TTL the lock
// would be over for the engine, which counts from before it was sent.
func limit(ctx context.Context, ttl time.Duration) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return max(0, min(ttl, time.Until(deadline)))
	}
	return ttl
}

// micros rounds up.
func micros(d time.Duration) int64 {
	n := int64(d / time.Microsecond)
	if d%time.Microsecond > 0 {
		n++
	}
	return n
}
