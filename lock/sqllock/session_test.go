package sqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/herdgate/herdgate/internal/testutil"
	"github.com/herdgate/herdgate/lock"
	"github.com/herdgate/herdgate/lock/sqllock"
)

// The tests of locks of sessions.

// checkEvery is short for a test, and long enough for a busy machine to answer in.
const checkEvery = 200 * time.Millisecond

func newSessions(tb testing.TB, d database, db *sql.DB) *sqllock.Sessions {
	tb.Helper()
	sessions, err := sqllock.NewSessions(db, sqllock.SessionOptions{Dialect: d.dialect, Namespace: "test", CheckEvery: 5 * time.Second})
	must(tb, err)
	return sessions
}

// watched are sessions that are looked at often.
func watched(tb testing.TB, d database, db *sql.DB) *sqllock.Sessions {
	tb.Helper()
	sessions, err := sqllock.NewSessions(db, sqllock.SessionOptions{Dialect: d.dialect, Namespace: "test", CheckEvery: checkEvery})
	must(tb, err)
	return sessions
}

func (t on) sessionsExclude() {
	db := t.d.open(t, "")
	db.SetMaxOpenConns(2)
	sessions, name := newSessions(t, t.d, db), t.Name()
	for range 10 { // no connection gets lost
		first, err := sessions.TryLock(t.Context(), name)
		must(t, err)
		_, err = sessions.TryLock(t.Context(), name)
		wants(t, err, lock.ErrNotAcquired)
		must(t, first.Err())
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		must(t, first.Unlock(ctx)) // though ctx is dead
		must(t, first.Unlock(t.Context()))
		wants(t, first.Err(), lock.ErrReleased)
		<-first.Done()
		wants(t, first.Do(t.Context(), nil), lock.ErrReleased)
	}
}

func (t on) sessionsWait() {
	sessions, name := newSessions(t, t.d, t.d.open(t, "")), t.Name()
	first, err := sessions.Lock(t.Context(), name)
	must(t, err)
	got := make(chan error, 1)
	go func() {
		second, err := sessions.Lock(t.Context(), name)
		if err == nil {
			err = second.Unlock(t.Context())
		}
		got <- err
	}()
	testutil.Eventually(t, patience, func() bool { return waiting(t, t.d) > 0 }, "the second waits")
	must(t, first.Unlock(t.Context()))
	must(t, <-got)
}

// waiting is how many sessions wait for a session lock.
func waiting(tb testing.TB, d database) (n int) {
	tb.Helper()
	query := "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
	if d.dialect == sqllock.MySQL {
		query = "SELECT count(*) FROM information_schema.processlist WHERE state = 'User lock'"
	}
	must(tb, d.open(tb, "").QueryRowContext(tb.Context(), query).Scan(&n))
	return n
}

func (t on) sessionsGiveUp() {
	sessions, name := newSessions(t, t.d, t.d.open(t, "")), t.Name()
	first, err := sessions.Lock(t.Context(), name)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan error, 1)
	go func() {
		_, err := sessions.Lock(ctx, name)
		got <- err
	}()
	testutil.Eventually(t, patience, func() bool { return waiting(t, t.d) > 0 }, "the second waits")
	cancel()
	wants(t, <-got, lock.ErrNotAcquired, context.Canceled)
	must(t, first.Unlock(t.Context()))
	testutil.Eventually(t, patience, func() bool {
		third, err := sessions.TryLock(t.Context(), name)
		return err == nil && third.Unlock(t.Context()) == nil
	}, "the lock can be had")
}

func (t on) sessionsAreLost() {
	db := t.d.open(t, "")
	items(t, t.d, db)
	sessions, name := watched(t, t.d, db), t.Name()
	identify, end, free := "SELECT pg_backend_pid()", "SELECT pg_terminate_backend(%d)", "SELECT pg_advisory_unlock_all()"
	if t.d.dialect == sqllock.MySQL {
		identify, end, free = "SELECT CONNECTION_ID()", "KILL %d", "DO RELEASE_ALL_LOCKS()"
	}
	first, err := sessions.TryLock(t.Context(), name)
	must(t, err)
	err = first.Do(t.Context(), func(ctx context.Context, conn *sql.Conn) error {
		tx, err := conn.BeginTx(ctx, nil)
		must(t, err)
		_, err = tx.ExecContext(ctx, "UPDATE items SET value = 1 WHERE id = 1")
		must(t, err)
		var id int
		must(t, tx.QueryRowContext(ctx, identify).Scan(&id))
		_, err = db.ExecContext(ctx, fmt.Sprintf(end, id))
		must(t, err)
		return tx.Commit()
	})
	if err == nil {
		t.Error("a session that was ended has committed")
	}
	var value int
	must(t, db.QueryRowContext(t.Context(), "SELECT value FROM items WHERE id = 1").Scan(&value))
	if value != 0 {
		t.Error("a session that was ended has written")
	}
	<-first.Done()
	wants(t, first.Err(), lock.ErrLost)
	wants(t, first.Unlock(t.Context()), lock.ErrLost)

	second, err := sessions.TryLock(t.Context(), name)
	must(t, err)
	must(t, second.Do(t.Context(), func(ctx context.Context, conn *sql.Conn) error {
		_, err := conn.ExecContext(ctx, free) // it lives, without its lock
		return err
	}))
	<-second.Done()
	wants(t, second.Err(), lock.ErrLost, lock.ErrNotHeld)
}

// sessionHolder is a process that holds a session lock until it is killed.
func sessionHolder(ctx context.Context, args testutil.Args) error {
	db, err := sql.Open(args["driver"], args["source"])
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	var dialect sqllock.Dialect
	if _, err := fmt.Sscan(args["dialect"], &dialect); err != nil {
		return err
	}
	sessions, err := sqllock.NewSessions(db, sqllock.SessionOptions{Dialect: dialect, Namespace: "test"})
	if err != nil {
		return err
	}
	session, err := sessions.TryLock(ctx, args["name"])
	if err != nil {
		return err
	}
	if err := testutil.Emit("held"); err != nil {
		return err
	}
	<-ctx.Done()
	return errors.Join(ctx.Err(), session.Unlock(ctx))
}

func (t on) sessionsOfTheKilled() {
	child := testutil.Spawn(t, "session", testutil.Args{
		"driver": t.d.driver, "source": t.d.source(t.d.server.Addr()), "dialect": fmt.Sprint(uint8(t.d.dialect)), "name": t.Name(),
	})
	var held string
	child.Next(patience, &held)
	sessions := newSessions(t, t.d, t.d.open(t, ""))
	_, err := sessions.TryLock(t.Context(), t.Name())
	wants(t, err, lock.ErrNotAcquired)
	child.Kill()
	session, err := sessions.Lock(t.Context(), t.Name())
	must(t, err)
	must(t, session.Unlock(t.Context()))
}

func (t on) sessionNames() {
	sessions := newSessions(t, t.d, t.d.open(t, ""))
	if _, err := sessions.TryLock(t.Context(), ""); err == nil {
		t.Error("an empty name is no name, and got a lock")
	}
	var held []*sqllock.Session
	for _, name := range []string{"a", "A", "é", "É", "a ", "\x00", strings.Repeat("x", 100) + "1", strings.Repeat("x", 100) + "2"} {
		session, err := sessions.TryLock(t.Context(), name)
		must(t, err)
		if session.Name() != name {
			t.Errorf("the lock is called %q, want %q", session.Name(), name)
		}
		held = append(held, session)
	}
	for _, session := range held {
		must(t, session.Unlock(t.Context()))
	}
}
