package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"

	"github.com/herdgate/herdgate/lock"
)

// ErrStaleToken says that a row has seen a higher token than the one that was checked: the lock has had another holder
// since, and the write must not happen.
var ErrStaleToken = errors.New("sqllock: stale token")

// Guard lets tx commit only as the holder of the lock: it returns nil if nobody has got the lock since the grant with
// that token, and then nobody gets it before tx ends. It is the token of a lease, lock.Lease.Token, of this very table, in
// the database that tx is in. Otherwise the error matches lock.ErrNotHeld, and tx has to be rolled back, as with any
// other error. So it does if tx goes on seeing what was before the grant: begin it afterwards.
//
// It proves exactly that: what tx reads after it and writes, before or after it, is of the only holder. It holds for a
// holder that was frozen, and for one whose lease has expired while nobody else wanted the lock.
//
// Call it last, before the commit: until tx ends, renewals of the lease wait for it, and the next holder does too. In
// PostgreSQL, at the levels repeatable read and serializable, a renewal since the first statement of tx makes it fail with
// a serialization failure (SQLSTATE 40001); call it first there, and keep tx short. SQLite fails the first write of tx
// instead, or the commit, if another has got the lock: only a tx that writes is guarded there.
func (b *Backend) Guard(ctx context.Context, tx *sql.Tx, name string, token uint64) error {
	checks := []statement{b.sql.guard}
	if b.dialect == MySQL {
		// The first reads the row as it is, whatever tx has seen; the second as it is for tx, whose other reads may be of
		// a time before the grant.
		checks = append(checks, b.sql.seen)
	}
	p := params{name: column(name), token: int64(token)}
	for _, check := range checks {
		var found int64
		err := tx.QueryRowContext(ctx, check.text, check.args(p)...).Scan(&found)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return fmt.Errorf("sqllock: guard %q: %w", name, lock.ErrNotHeld)
		case err != nil:
			return fmt.Errorf("sqllock: guard %q: %w", name, err)
		}
	}
	return nil
}

// LockRow locks name, for tx, until tx ends, and waits for it as long as ctx allows. It is for work that is a single
// transaction in the database of the table: there is no TTL and no token, and nothing to be renewed or released; what the
// holder wrote is void when it dies, and the lock is free when the database notices that, at once for a process that was
// killed. Names have nothing to do with those of leases. Each has a row in the table, which stays.
//
// After an error tx has to be rolled back; a deadlock, which MySQL may see where several lock a name for the first time, or
// a serialization failure is no reason not to begin anew. For SQLite the error matches errors.ErrUnsupported: there, a
// transaction that writes has the whole database.
func (b *Backend) LockRow(ctx context.Context, tx *sql.Tx, name string) error {
	if b.dialect == SQLite {
		return fmt.Errorf("sqllock: SQLite has no locks of rows: %w", errors.ErrUnsupported)
	}
	if _, err := tx.ExecContext(ctx, b.sql.lockRow.text, b.sql.lockRow.args(params{name: row(name)})...); err != nil {
		return fmt.Errorf("sqllock: lock row %q: %w", name, b.dialect.blame(err))
	}
	return nil
}

// Fence is a column of a table of the caller's in which each row keeps the highest token that has written it. The
// database may be another than that of the locks, and the locks may be of any backend with fence tokens. Make it with
// NewFence; its method may be called concurrently.
type Fence struct {
	dialect     Dialect
	raise, read statement
}

// FenceOptions say where tokens are kept. Dialect, Table and Key are required.
type FenceOptions struct {
	Dialect Dialect
	// Table has the rows that are protected. It matches [a-z_][a-z0-9_]*, with that of a schema and a dot before it if
	// need be, and so do the columns.
	Table string
	// Key is the column that a row is found by, its primary key.
	Key string
	// Column keeps the token; it is a BIGINT, and 0 or NULL in a row that no token has written yet. Empty is "fence".
	Column string
}

// NewFence makes a Fence. The error names what is out of range.
func NewFence(opts FenceOptions) (*Fence, error) {
	if err := opts.Dialect.validate(); err != nil {
		return nil, err
	}
	if opts.Column == "" {
		opts.Column = "fence"
	}
	table, tableErr := opts.Dialect.table("Table", opts.Table)
	key, keyErr := opts.Dialect.identifier("Key", opts.Key)
	column, columnErr := opts.Dialect.identifier("Column", opts.Column)
	if err := errors.Join(tableErr, keyErr, columnErr); err != nil {
		return nil, err
	}
	made := func(template string) statement {
		return opts.Dialect.statement(template, "{table}", table, "{key}", key, "{column}", column)
	}
	return &Fence{
		dialect: opts.Dialect,

		raise: made(`UPDATE {table} SET {column} = :token WHERE {key} = :id AND ({column} <= :token OR {column} IS NULL)`),
		read:  made(`SELECT COALESCE({column}, 0) FROM {table} WHERE {key} = :id {share}`),
	}, nil
}

// Check writes token into the row with that key, as part of tx. The error matches ErrStaleToken if the row has a higher
// one, and sql.ErrNoRows if there is no such row; after an error tx has to be rolled back. A token of 0, that of a lease
// whose backend has no fence, is an error, as is one that the column cannot keep, above math.MaxInt64.
//
// It proves that no holder with a higher token has written the row before tx commits, and lets none with a lower token
// write it afterwards, if all of them check. It does not prove that the lock is held: the next holder may have got it
// already, and not written yet. The row is locked until tx ends.
func (f *Fence) Check(ctx context.Context, tx *sql.Tx, key any, token uint64) error {
	if token == 0 || token > math.MaxInt64 {
		return fmt.Errorf("sqllock: fence of %v: token is %d: must be that of a lease whose backend has a fence, from 1 to %d", key, token, math.MaxInt64)
	}
	p := params{id: key, token: int64(token)}
	for range 2 { // a row that was inserted between the two statements is locked by the second, and the first finds it then
		if done, err := f.try(ctx, tx, p); done || err != nil {
			return err
		}
	}
	return fmt.Errorf("sqllock: fence of %v: the row is there, but the database wrote no token into it", key)
}

// try writes the token, or tells why it must not.
func (f *Fence) try(ctx context.Context, tx *sql.Tx, p params) (done bool, err error) {
	result, err := tx.ExecContext(ctx, f.raise.text, f.raise.args(p)...)
	if err != nil {
		return false, fmt.Errorf("sqllock: fence of %v: %w", p.id, f.dialect.blame(err))
	}
	if n, err := result.RowsAffected(); err != nil || n > 0 {
		return true, err
	}
	// MySQL counts no row that has this token already. What it reads here is the row as it is now, as it was there.
	var highest int64
	switch err := tx.QueryRowContext(ctx, f.read.text, f.read.args(p)...).Scan(&highest); {
	case err != nil:
		return false, fmt.Errorf("sqllock: fence of %v: %w", p.id, err)
	case highest > p.token:
		return false, fmt.Errorf("%w: %d for %v, which was written with %d", ErrStaleToken, p.token, p.id, highest)
	}
	return highest == p.token, nil
}
