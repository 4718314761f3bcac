package sqllock_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/herdgate/herdgate/internal/testutil"
	"github.com/herdgate/herdgate/lock"
	"github.com/herdgate/herdgate/lock/sqllock"
)

// The tests of leases, on any database.

func (t on) tablesAreMadeTogether() {
	db := t.d.open(t, "")
	exec(t, db, "DROP TABLE IF EXISTS together")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			backend, err := sqllock.New(db, sqllock.Options{Dialect: t.d.dialect, Table: "together"})
			if err == nil {
				err = backend.CreateTable(t.Context())
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func (t on) noTable() {
	db := t.d.open(t, "")
	backend, err := sqllock.New(db, sqllock.Options{Dialect: t.d.dialect, Table: "forgotten"})
	must(t, err)
	_, err = backend.Acquire(t.Context(), lock.Request{Name: "job", Owner: "a", TTL: time.Second})
	if err == nil || !strings.Contains(err.Error(), "forgotten") || !strings.Contains(err.Error(), "must be made by CreateTable") {
		t.Errorf("got %v, want the table's name and how to make it", err)
	}
}

// disguised is a connector whose driver nobody knows.
type disguised struct {
	inner  driver.Driver
	source string
}

func (d disguised) Open(source string) (driver.Conn, error) { return d.inner.Open(source) }

func (d disguised) Connect(context.Context) (driver.Conn, error) { return d.Open(d.source) }

func (d disguised) Driver() driver.Driver { return d }

func (t on) wrongDialects() {
	known := t.d.open(t, "")
	addr := ""
	if t.d.server != nil {
		addr = t.d.server.Addr()
	}
	db := sql.OpenDB(disguised{known.Driver(), t.d.source(addr)})
	defer func() { _ = db.Close() }()
	for _, wrong := range []sqllock.Dialect{sqllock.PostgreSQL, sqllock.MySQL, sqllock.SQLite} {
		if wrong == t.d.dialect {
			continue
		}
		named := func(what string, err error) {
			t.Helper()
			for _, want := range []string{"Dialect is " + wrong.String(), "must be", t.d.dialect.String()} {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%s: got error %v, want one with %q", what, err, want)
				}
			}
		}
		_, err := sqllock.New(known, sqllock.Options{Dialect: wrong})
		named("New", err)
		for _, table := range []string{"", "forgotten"} {
			backend, err := sqllock.New(db, sqllock.Options{Dialect: wrong, Table: table})
			must(t, err)
			named("CreateTable", backend.CreateTable(t.Context()))
			_, err = backend.Acquire(t.Context(), lock.Request{Name: t.Name(), Owner: "a", TTL: time.Minute})
			named("Acquire", err)
			if wrong != sqllock.SQLite && t.d.dialect != sqllock.SQLite { // SQLite has no LockRow, and understands it
				named("LockRow", backend.LockRow(t.Context(), begin(t, db), "row"))
			}
		}
		if t.d.dialect != sqllock.SQLite { // which understands it
			fence, err := sqllock.NewFence(sqllock.FenceOptions{Dialect: wrong, Table: "herdgate_locks", Key: "name", Column: "token"})
			must(t, err)
			named("Check", fence.Check(t.Context(), begin(t, db), "job", 1))
		}
		if wrong != sqllock.SQLite {
			_, err = sqllock.NewSessions(known, sqllock.SessionOptions{Dialect: wrong})
			named("NewSessions", err)
			sessions, err := sqllock.NewSessions(db, sqllock.SessionOptions{Dialect: wrong})
			must(t, err)
			_, err = sessions.TryLock(t.Context(), "job")
			named("Sessions", err)
		}
	}
}

func (t on) otherTables() {
	db := t.d.open(t, "")
	table := map[sqllock.Dialect]string{
		sqllock.PostgreSQL: "public.select",
		sqllock.MySQL:      "test.select",
		sqllock.SQLite:     "main.select",
	}[t.d.dialect]
	other, err := sqllock.New(db, sqllock.Options{Dialect: t.d.dialect, Table: table})
	must(t, err)
	exec(t, db, other.Schema())
	req := lock.Request{Name: "job", Owner: "a", TTL: time.Hour}
	_, err = other.Acquire(t.Context(), req)
	must(t, err)
	req.Owner = "b"
	claim := lock.Claim{Name: "job", Owner: "b"}
	_, err = t.d.backend(t, db).Acquire(t.Context(), req) // of the default table
	must(t, err)
	must(t, t.d.backend(t, db).Release(t.Context(), claim))
	wants(t, other.Release(t.Context(), claim), lock.ErrNotHeld)
}

// age makes a lock look as if its last grant were so long ago.
func age(tb testing.TB, db *sql.DB, by time.Duration, name string) {
	tb.Helper()
	exec(tb, db, fmt.Sprintf("UPDATE herdgate_locks SET token = token - %d WHERE name = '%s'", by.Microseconds(), name))
}

func rows(tb testing.TB, db *sql.DB, where string) (n int) {
	tb.Helper()
	must(tb, db.QueryRowContext(tb.Context(), "SELECT count(*) FROM herdgate_locks WHERE "+where).Scan(&n))
	return n
}

func (t on) tokensRiseOverPrune() {
	db := t.d.open(t, "")
	backend := t.d.backend(t, db)
	get := func(owner string) uint64 {
		grant, err := backend.Acquire(t.Context(), lock.Request{Name: "pruned", Owner: owner, TTL: time.Hour})
		must(t, err)
		must(t, backend.Release(t.Context(), lock.Claim{Name: "pruned", Owner: owner, Token: grant.Token}))
		return grant.Token
	}
	last := get("a")
	age(t, db, 2*time.Hour, "pruned")
	_, err := backend.Prune(t.Context(), time.Hour) // or another test's at the same time
	must(t, err)
	if rows(t, db, "name = 'pruned'") != 0 {
		t.Error("its row was not pruned")
	}
	if next := get("b"); next <= last {
		t.Errorf("token %d after %d and a prune", next, last)
	}
	// The clock steps back: the row keeps the order.
	age(t, db, -2*time.Hour, "pruned")
	last = get("c")
	if next := get("d"); next != last+1 {
		t.Errorf("token %d after %d, which is ahead of the clock", next, last)
	}
}

func (t on) pruneKeepsWhatIsNew() {
	db := t.d.open(t, "")
	backend := t.d.backend(t, db)
	for _, name := range []string{"held", "new"} {
		_, err := backend.Acquire(t.Context(), lock.Request{Name: name, Owner: "a", TTL: 24 * time.Hour})
		must(t, err)
	}
	must(t, backend.Release(t.Context(), lock.Claim{Name: "new", Owner: "a"}))
	age(t, db, 2*time.Hour, "held")
	_, err := backend.Prune(t.Context(), time.Hour)
	must(t, err)
	if n := rows(t, db, "name IN ('held', 'new')"); n != 2 {
		t.Errorf("%d rows are left, want both", n)
	}
	must(t, backend.Release(t.Context(), lock.Claim{Name: "held", Owner: "a"}))
}

// In InnoDB three sessions that insert one key deadlock.
func (t on) firstInserts() {
	contenders, names := 20, 8
	if t.d.dialect == sqllock.SQLite {
		contenders, names = 5, 5 // it has one writer at a time
	}
	contend(t, t.d, t.d.open(t, ""), contenders, names)
}

func contend(tb testing.TB, d database, db *sql.DB, contenders, names int) {
	tb.Helper()
	made, name := engine(tb, d, db, lock.Options{TTL: time.Minute, RetryMin: time.Millisecond, RetryMax: 10 * time.Millisecond})
	for n := range names {
		var inside atomic.Int32
		var wg sync.WaitGroup
		for range contenders {
			wg.Go(func() {
				lease, err := made.Lock(tb.Context(), fmt.Sprint(name, n))
				if err != nil {
					tb.Error(err)
					return
				}
				if inside.Add(1) != 1 {
					tb.Error("two hold the lock")
				}
				inside.Add(-1)
				if err := lease.Unlock(tb.Context()); err != nil {
					tb.Error(err)
				}
			})
		}
		wg.Wait()
	}
}

func (t on) poolIsUsedUp() {
	db := t.d.open(t, "")
	db.SetMaxOpenConns(1)
	made, name := engine(t, t.d, db, lock.Options{CallTimeout: 100 * time.Millisecond})
	conn, err := db.Conn(t.Context())
	must(t, err)
	_, err = made.TryLock(t.Context(), name)
	wants(t, err, context.DeadlineExceeded)
	if errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("%v: matches ErrNotAcquired, but nobody holds the lock", err)
	}
	must(t, conn.Close())
}

func (t on) longNames() {
	backend := t.d.backend(t, t.d.open(t, ""))
	long := strings.Repeat("x", 1000)
	var claims []lock.Claim
	for _, name := range []string{long + "a", long + "b", strings.Repeat("é", 300)} {
		grant, err := backend.Acquire(t.Context(), lock.Request{Name: name, Owner: long, TTL: time.Hour})
		must(t, err)
		claims = append(claims, lock.Claim{Name: name, Owner: long, Token: grant.Token})
	}
	for _, claim := range claims {
		must(t, backend.Release(t.Context(), claim))
	}
}

// holderReport is what the holder process tells its parent.
type holderReport struct {
	Token         uint64
	Lost          bool
	Unlock        string // error of the unlock
	Guard, Fenced string // errors of transactions with its token
}

// holder is a process that holds the lock until it has lost it, and then writes nevertheless.
func holder(ctx context.Context, args testutil.Args) error {
	db, err := sql.Open(args["driver"], args["source"])
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	var dialect sqllock.Dialect
	if _, err := fmt.Sscan(args["dialect"], &dialect); err != nil {
		return err
	}
	backend, err := sqllock.New(db, sqllock.Options{Dialect: dialect})
	if err != nil {
		return err
	}
	engine, err := lock.New(backend, lock.Options{TTL: 2 * time.Second})
	if err != nil {
		return err
	}
	lease, err := engine.TryLock(ctx, args["name"])
	if err != nil {
		return err
	}
	if err := testutil.Emit(holderReport{Token: lease.Token()}); err != nil {
		return err
	}
	select {
	case <-lease.Done():
	case <-ctx.Done():
	}
	report := holderReport{Lost: errors.Is(lease.Err(), lock.ErrLost)}
	report.Guard = in(ctx, db, func(tx *sql.Tx) error { return backend.Guard(ctx, tx, args["name"], lease.Token()) })
	fence, err := newFence(dialect)
	if err != nil {
		return err
	}
	report.Fenced = in(ctx, db, func(tx *sql.Tx) error { return fence.Check(ctx, tx, 1, lease.Token()) })
	if err := lease.Unlock(ctx); err != nil {
		report.Unlock = err.Error()
	}
	return testutil.Emit(report)
}

// in is the error of a transaction, "" without.
func in(ctx context.Context, db *sql.DB, f func(*sql.Tx) error) string {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = tx.Rollback() }() // unless it was committed
	err = f(tx)
	if err == nil {
		err = tx.Commit()
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

func spawnHolder(tb testing.TB, d database, name string) (*testutil.Child, holderReport) {
	tb.Helper()
	addr := ""
	if d.server != nil {
		addr = d.server.Addr()
	}
	child := testutil.Spawn(tb, "holder", testutil.Args{
		"driver": d.driver, "source": d.source(addr), "dialect": fmt.Sprint(uint8(d.dialect)), "name": name,
	})
	var report holderReport
	child.Next(patience, &report)
	return child, report
}

func (t on) holderIsKilled() {
	made, name := engine(t, t.d, t.d.open(t, ""), lock.Options{})
	child, report := spawnHolder(t, t.d, name)
	child.Kill()
	_, err := made.TryLock(t.Context(), name)
	wants(t, err, lock.ErrNotAcquired)
	lease, err := made.Lock(t.Context(), name)
	must(t, err)
	if lease.Token() <= report.Token {
		t.Errorf("token %d after %d", lease.Token(), report.Token)
	}
	must(t, lease.Unlock(t.Context()))
}

func (t on) holderIsFrozen() {
	db := t.d.open(t, "")
	items(t, t.d, db)
	made, name := engine(t, t.d, db, lock.Options{TTL: time.Minute})
	child, _ := spawnHolder(t, t.d, name)
	child.Freeze()
	next, err := made.Lock(t.Context(), name)
	must(t, err)
	fence, err := newFence(t.d.dialect)
	must(t, err)
	if failed := in(t.Context(), db, func(tx *sql.Tx) error { return fence.Check(t.Context(), tx, 1, next.Token()) }); failed != "" {
		t.Fatal(failed)
	}
	child.Thaw()
	var report holderReport
	child.Next(patience, &report)
	for text, want := range map[string]error{
		report.Unlock: lock.ErrNotHeld, report.Guard: lock.ErrNotHeld, report.Fenced: sqllock.ErrStaleToken,
	} {
		if !report.Lost || !strings.Contains(text, want.Error()) {
			t.Errorf("the thawed holder says %+v, want that it lost the lock and could not write", report)
		}
	}
	must(t, next.Extend(t.Context(), time.Minute)) // the next still holds it
	must(t, next.Unlock(t.Context()))
	must(t, child.Wait(patience))
}
