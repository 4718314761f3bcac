package sqllock_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/herdgate/herdgate/internal/testutil"
	"github.com/herdgate/herdgate/lock"
	"github.com/herdgate/herdgate/lock/sqllock"
)

// The tests of what keeps a transaction from being that of a former holder.

// items makes a table with a row 1 that no token has written.
func items(tb testing.TB, _ database, db *sql.DB) {
	tb.Helper()
	exec(tb, db, "DROP TABLE IF EXISTS items")
	exec(tb, db, "CREATE TABLE items (id BIGINT PRIMARY KEY, fence BIGINT, value BIGINT)")
	exec(tb, db, "INSERT INTO items (id, value) VALUES (1, 0)")
}

func newFence(dialect sqllock.Dialect) (*sqllock.Fence, error) {
	return sqllock.NewFence(sqllock.FenceOptions{Dialect: dialect, Table: "items", Key: "id"})
}

func (t on) fenceRefusesLower() {
	db := t.d.open(t, "")
	items(t, t.d, db)
	fence, err := newFence(t.d.dialect)
	must(t, err)
	check := func(id, token uint64) error {
		tx := begin(t, db)
		if err := fence.Check(t.Context(), tx, int64(id), token); err != nil {
			_ = tx.Rollback()
			return err
		}
		return tx.Commit()
	}
	must(t, check(1, 5))
	must(t, check(1, 5)) // another write of the same holder
	must(t, check(1, 6))
	wants(t, check(1, 5), sqllock.ErrStaleToken)
	must(t, check(1, 6))
	wants(t, check(2, 7), sql.ErrNoRows)
}

func (t on) fenceNeedsAToken() {
	db := t.d.open(t, "")
	items(t, t.d, db)
	fence, err := newFence(t.d.dialect)
	must(t, err)
	for _, token := range []uint64{0, math.MaxInt64 + 1, math.MaxUint64} {
		tx := begin(t, db)
		if err := fence.Check(t.Context(), tx, 1, token); err == nil || !strings.Contains(err.Error(), "token is") {
			t.Errorf("got error %v for token %d, want one that names it", err, token)
		}
		must(t, tx.Rollback())
	}
}

// interrupted is a key, and does something before it is used the second time.
type interrupted struct {
	key  int64
	uses int
	do   func()
}

func (i *interrupted) Value() (driver.Value, error) {
	if i.uses++; i.uses == 2 {
		i.do()
	}
	return i.key, nil
}

func (t on) fenceWritesALateRow() {
	db := t.d.open(t, "")
	items(t, t.d, db)
	fence, err := newFence(t.d.dialect)
	must(t, err)
	tx := begin(t, db)
	key := &interrupted{key: 2, do: func() { exec(t, db, "INSERT INTO items (id, value) VALUES (2, 0)") }}
	must(t, fence.Check(t.Context(), tx, key, 7))
	must(t, tx.Commit())
	var token int
	must(t, db.QueryRowContext(t.Context(), "SELECT COALESCE(fence, 0) FROM items WHERE id = 2").Scan(&token))
	if token != 7 {
		t.Errorf("the row has token %d, want 7", token)
	}
}

// guardRefusesOldReads lets a transaction guard itself by a grant that is younger than what it sees.
func (t on) guardRefusesOldReads() {
	db := t.d.open(t, "")
	items(t, t.d, db)
	backend := t.d.backend(t, db)
	first, name := engine(t, t.d, db, lock.Options{TTL: time.Minute})
	lease, err := first.TryLock(t.Context(), name)
	must(t, err)
	for _, level := range []sql.IsolationLevel{sql.LevelDefault, sql.LevelRepeatableRead, sql.LevelSerializable} {
		if level == sql.LevelSerializable && t.d.dialect == sqllock.MySQL {
			continue // whoever reads there keeps others from writing
		}
		old, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: level})
		must(t, err)
		var before, after int
		must(t, old.QueryRowContext(t.Context(), "SELECT value FROM items WHERE id = 1").Scan(&before))
		tx := begin(t, db)
		exec(t, tx, "UPDATE items SET value = value + 1 WHERE id = 1")
		must(t, backend.Guard(t.Context(), tx, name, lease.Token()))
		must(t, tx.Commit())
		must(t, lease.Unlock(t.Context()))
		lease, err = first.TryLock(t.Context(), name)
		must(t, err)
		if err := backend.Guard(t.Context(), old, name, lease.Token()); err == nil {
			must(t, old.QueryRowContext(t.Context(), "SELECT value FROM items WHERE id = 1").Scan(&after))
			if after == before {
				t.Errorf("%v: a guarded transaction does not see what the last holder wrote", level)
			}
		} else {
			wants(t, err, lock.ErrNotHeld)
		}
		must(t, old.Rollback())
	}
	must(t, lease.Unlock(t.Context()))
}

func (t on) guardNeedsTheLock() {
	db := t.d.open(t, "")
	made, name := engine(t, t.d, db, lock.Options{TTL: time.Minute})
	backend := t.d.backend(t, db)
	guard := func(token uint64) error {
		tx := begin(t, db)
		defer func() { must(t, tx.Rollback()) }()
		return backend.Guard(t.Context(), tx, name, token)
	}
	wants(t, guard(1), lock.ErrNotHeld)
	lease, err := made.TryLock(t.Context(), name)
	must(t, err)
	must(t, guard(lease.Token()))
	wants(t, guard(lease.Token()+1), lock.ErrNotHeld)
	must(t, lease.Unlock(t.Context()))
	wants(t, guard(lease.Token()), lock.ErrNotHeld)
}

// expired gets a lock that nobody renews, and waits until it has expired in the database.
func expired(tb testing.TB, d database, db *sql.DB, between func(*lock.Lease)) (lease *lock.Lease, name string) {
	tb.Helper()
	made, name := engine(tb, d, db, lock.Options{TTL: 300 * time.Millisecond, Watchdog: lock.Off})
	probe, other := engine(tb, d, db, lock.Options{TTL: 300 * time.Millisecond, Watchdog: lock.Off, RetryMax: 50 * time.Millisecond})
	lease, err := made.TryLock(tb.Context(), name)
	must(tb, err)
	between(lease)
	_, err = probe.TryLock(tb.Context(), other)
	must(tb, err)
	_, err = probe.Lock(tb.Context(), other) // when this one has expired, so has the first
	must(tb, err)
	return lease, name
}

func (t on) guardedIsHeld() {
	db := t.d.open(t, "")
	var tx *sql.Tx
	lease, name := expired(t, t.d, db, func(lease *lock.Lease) {
		tx = begin(t, db)
		must(t, t.d.backend(t, db).Guard(t.Context(), tx, lease.Name(), lease.Token()))
	})
	wants(t, lease.Err(), lock.ErrLost)
	next, _ := engine(t, t.d, db, lock.Options{TTL: time.Minute})
	_, err := next.TryLock(t.Context(), name)
	wants(t, err, lock.ErrNotAcquired)
	must(t, tx.Commit())
	second, err := next.TryLock(t.Context(), name)
	must(t, err)
	must(t, second.Unlock(t.Context()))
}

// guardExcludesTheNext lets a holder write when the lock has gone to another one, which writes too.
func (t on) guardExcludesTheNext() {
	db := t.d.open(t, "")
	items(t, t.d, db)
	backend := t.d.backend(t, db)
	write := func(tx *sql.Tx, name string, token uint64) error {
		if _, err := tx.ExecContext(t.Context(), "UPDATE items SET value = value + 1 WHERE id = 1"); err != nil {
			return err
		}
		if err := backend.Guard(t.Context(), tx, name, token); err != nil {
			return err
		}
		return tx.Commit()
	}
	var early *sql.Tx
	lease, name := expired(t, t.d, db, func(*lock.Lease) {
		early = begin(t, db)
		var value int
		must(t, early.QueryRowContext(t.Context(), "SELECT value FROM items WHERE id = 1").Scan(&value)) // its snapshot is of now
	})
	made, _ := engine(t, t.d, db, lock.Options{TTL: time.Minute})
	next, err := made.TryLock(t.Context(), name)
	must(t, err)
	if err := write(early, name, lease.Token()); err == nil {
		t.Error("a former holder has written")
	}
	_ = early.Rollback()
	must(t, write(begin(t, db), name, next.Token()))
	must(t, next.Unlock(t.Context()))
	var value int
	must(t, db.QueryRowContext(t.Context(), "SELECT value FROM items WHERE id = 1").Scan(&value))
	if value != 1 {
		t.Errorf("%d transactions have written, want that of the holder", value)
	}
}

func (t on) rowLocks() {
	db := t.d.open(t, "")
	backend, name := t.d.backend(t, db), t.Name()
	first := begin(t, db)
	must(t, backend.LockRow(t.Context(), first, name))
	must(t, backend.LockRow(t.Context(), begin(t, db), name+"x")) // another one
	got := make(chan error, 1)
	waiting := begin(t, db)
	go func() { got <- backend.LockRow(t.Context(), waiting, name) }()
	testutil.Eventually(t, patience, func() bool { return stuck(t, t.d, db) > 0 }, "the second waits")
	select {
	case err := <-got:
		t.Fatalf("the second did not wait: %v", err)
	default:
	}
	must(t, first.Rollback())
	must(t, <-got)
	must(t, waiting.Commit())

	ctx, cancel := context.WithCancel(t.Context())
	third := begin(t, db)
	must(t, backend.LockRow(t.Context(), third, name))
	fourth := begin(t, db)
	go func() { got <- backend.LockRow(ctx, fourth, name) }()
	testutil.Eventually(t, patience, func() bool { return stuck(t, t.d, db) > 0 }, "the fourth waits")
	cancel()
	wants(t, <-got, context.Canceled)
}
