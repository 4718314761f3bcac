package sqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/herdgate/herdgate/internal/testutil"
	"github.com/herdgate/herdgate/lock"
	"github.com/herdgate/herdgate/lock/sqllock"
)

// The tests of leases on databases that are servers.

// stuck is how many statements wait for a lock of a row.
func stuck(tb testing.TB, d database, db *sql.DB) (n int) {
	tb.Helper()
	query := "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
	if d.dialect == sqllock.MySQL {
		query = "SELECT count(*) FROM information_schema.processlist WHERE time_ms > 100 AND (info LIKE 'INSERT %' OR info LIKE 'UPDATE %')"
	}
	must(tb, db.QueryRowContext(tb.Context(), query).Scan(&n))
	return n
}

// overdue tells whether a statement has waited for a lock of a row for longer than a second.
func overdue(tb testing.TB, d database, db *sql.DB) bool {
	tb.Helper()
	query := "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query_start < clock_timestamp() - INTERVAL '1.1 second'"
	if d.dialect == sqllock.MySQL {
		query = "SELECT count(*) FROM information_schema.processlist WHERE time_ms > 1100 AND (info LIKE 'INSERT %' OR info LIKE 'UPDATE %')"
	}
	var n int
	must(tb, db.QueryRowContext(tb.Context(), query).Scan(&n))
	return n > 0
}

// lateIsVoid lets a request wait for its row until its client has gone, and a little longer.
func (t on) lateIsVoid() {
	db := t.d.open(t, "")
	made, name := engine(t, t.d, db, lock.Options{TTL: time.Minute})
	lease, err := made.TryLock(t.Context(), name)
	must(t, err)
	must(t, lease.Unlock(t.Context())) // now it has a row
	tx := begin(t, db)
	lockTheRow(t, tx, lease.Token())

	link := testutil.NewLink(t, t.d.server.Addr())
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	got := make(chan error, 1)
	go func() {
		_, err := t.d.backend(t, openSource(t, t.d.driver, t.d.source(link.Addr()))).
			Acquire(ctx, lock.Request{Name: name, Owner: "late", TTL: time.Hour})
		got <- err
	}()
	testutil.Eventually(t, patience, func() bool { return stuck(t, t.d, db) > 0 }, "the request waits in the database")
	link.Cut() // so that the driver cannot tell the database that it has given up
	if err := <-got; err == nil || errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("got error %v, want one that leaves the outcome open", err)
	}
	testutil.Eventually(t, patience, func() bool { return overdue(t, t.d, db) }, "it has waited for longer than its client")
	must(t, tx.Commit())
	testutil.Eventually(t, patience, func() bool { return stuck(t, t.d, db) == 0 }, "the request has come to its row")
	next, err := made.TryLock(t.Context(), name) // not held by the one that has gone
	must(t, err)
	if next.Token() <= lease.Token() {
		t.Errorf("token %d after %d", next.Token(), lease.Token())
	}
	must(t, next.Unlock(t.Context()))
}

// deadlocks lets several ask for a fresh lock while its row is being inserted by a transaction that is rolled back: in
// InnoDB they deadlock then.
func (t on) deadlocks() {
	db := t.d.open(t, "")
	backend := t.d.backend(t, db)
	for round := range 5 {
		name := fmt.Sprintf("deadlock-%d", round)
		tx := begin(t, db)
		exec(t, tx, "INSERT INTO herdgate_locks (name, owner, token, expires_at) VALUES ('"+name+"', '', 0, 0)")
		const contenders = 4
		got := make(chan error, contenders)
		for n := range contenders {
			go func() {
				_, err := backend.Acquire(t.Context(), lock.Request{Name: name, Owner: fmt.Sprint("owner ", n), TTL: time.Hour})
				got <- err
			}()
		}
		testutil.Eventually(t, patience, func() bool { return stuck(t, t.d, db) >= contenders }, "all wait in the database")
		must(t, tx.Rollback())
		granted := 0
		for range contenders {
			switch err := <-got; {
			case err == nil:
				granted++
			case !errors.Is(err, lock.ErrNotAcquired):
				t.Error(err)
			}
		}
		if granted != 1 {
			t.Errorf("%d got the lock, want 1", granted)
		}
	}
}

// lockTheRow lets those who write the row of a lock wait until tx ends, and those who read it not.
func lockTheRow(tb testing.TB, tx *sql.Tx, token uint64) {
	tb.Helper()
	var name string
	query := fmt.Sprintf("SELECT name FROM herdgate_locks WHERE token = %d FOR UPDATE", token)
	must(tb, tx.QueryRowContext(tb.Context(), query).Scan(&name))
}

func (t on) lateRenewalIsVoid() {
	db := t.d.open(t, "")
	backend := t.d.backend(t, db)
	claim := lock.Claim{Name: t.Name(), Owner: "a"}
	grant, err := backend.Acquire(t.Context(), lock.Request{Name: claim.Name, Owner: claim.Owner, TTL: time.Minute})
	must(t, err)
	tx := begin(t, db)
	lockTheRow(t, tx, grant.Token)

	link := testutil.NewLink(t, t.d.server.Addr())
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	got := make(chan error, 1)
	go func() {
		got <- t.d.backend(t, openSource(t, t.d.driver, t.d.source(link.Addr()))).Renew(ctx, claim, time.Hour)
	}()
	testutil.Eventually(t, patience, func() bool { return stuck(t, t.d, db) > 0 }, "the renewal waits in the database")
	link.Cut()
	if err := <-got; err == nil || errors.Is(err, lock.ErrNotHeld) {
		t.Errorf("got error %v, want one that leaves the outcome open", err)
	}
	testutil.Eventually(t, patience, func() bool { return overdue(t, t.d, db) }, "it has waited for longer than its client")
	must(t, tx.Commit())
	testutil.Eventually(t, patience, func() bool { return stuck(t, t.d, db) == 0 }, "the renewal has come to its row")
	_, err = backend.Acquire(t.Context(), lock.Request{Name: claim.Name, Owner: "b", TTL: time.Minute})
	held := (*lock.ContendedError)(nil)
	if !errors.As(err, &held) || held.RetryAfter > time.Minute {
		t.Errorf("got error %v, want that it is held for a minute at most", err)
	}
	must(t, backend.Release(t.Context(), claim))
}

func (t on) isolationLevels() {
	d := t.d // t is shadowed below
	for _, level := range []string{"read committed", "repeatable read", "serializable"} {
		t.Run(level, func(t *testing.T) {
			more := "&default_transaction_isolation=" + url.PathEscape(level)
			if d.dialect == sqllock.MySQL {
				level := map[string]string{"read committed": "READ-COMMITTED", "repeatable read": "REPEATABLE-READ", "serializable": "SERIALIZABLE"}[level]
				more = "?tx_isolation='" + level + "'&clientFoundRows=true&time_zone='%2B05:00'"
			}
			db := openSource(t, d.driver, d.source(d.server.Addr())+more)
			backend := d.backend(t, db)
			contend(t, d, db, 5, 5)

			claim := lock.Claim{Name: t.Name(), Owner: "a"}
			for range 2 {
				grant, err := backend.Acquire(t.Context(), lock.Request{Name: claim.Name, Owner: "a", TTL: time.Hour})
				must(t, err)
				claim.Token = grant.Token
			}
			must(t, backend.Renew(t.Context(), claim, time.Minute)) // changes nothing
			// Sessions with other settings, of the time zone too, see the same.
			_, err := d.backend(t, d.open(t, "")).Acquire(t.Context(), lock.Request{Name: claim.Name, Owner: "b", TTL: time.Hour})
			held := (*lock.ContendedError)(nil)
			if !errors.As(err, &held) || held.RetryAfter < 59*time.Minute || held.RetryAfter > time.Hour {
				t.Errorf("got error %v, want that it is held for an hour", err)
			}
			must(t, backend.Release(t.Context(), claim))
			wants(t, backend.Renew(t.Context(), claim, time.Minute), lock.ErrNotHeld)
		})
	}
}

func (t on) openSession() {
	backend := t.d.backend(t, t.d.open(t, "?autocommit=0"))
	_, err := backend.Acquire(t.Context(), lock.Request{Name: t.Name(), Owner: "a", TTL: time.Hour})
	if err == nil || errors.Is(err, lock.ErrNotAcquired) || !strings.Contains(err.Error(), "autocommit") {
		t.Errorf("got error %v, want one that blames autocommit", err)
	}
}

func (t on) holderIsCutOff() {
	d := t.d // t is shadowed below
	for name, cutOff := range map[string]func(*testutil.Link){
		"cut":        (*testutil.Link).Cut,
		"frozen":     (*testutil.Link).Freeze,
		"no replies": (*testutil.Link).SwallowReplies,
	} {
		t.Run(name, func(t *testing.T) {
			link := testutil.NewLink(t, d.server.Addr())
			lossy, job := engine(t, d, openSource(t, d.driver, d.source(link.Addr())), lock.Options{TTL: 2 * time.Second})
			steady, _ := engine(t, d, d.open(t, ""), lock.Options{TTL: time.Minute})
			held, err := lossy.Lock(t.Context(), job)
			must(t, err)
			cutOff(link)
			next, err := steady.Lock(t.Context(), job)
			must(t, err)
			wants(t, held.Err(), lock.ErrLost)
			must(t, next.Unlock(t.Context()))
		})
	}
}

func (t on) replyIsLost() {
	link := testutil.NewLink(t, t.d.server.Addr())
	db := t.d.open(t, "")
	made, name := engine(t, t.d, openSource(t, t.d.driver, t.d.source(link.Addr())), lock.Options{TTL: time.Hour, CallTimeout: time.Second})
	warm, err := made.TryLock(t.Context(), name)
	must(t, err)
	must(t, warm.Unlock(t.Context()))
	link.SwallowReplies()
	_, err = made.TryLock(t.Context(), name)
	if err == nil || errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("got error %v, want one that leaves the outcome open", err)
	}
	link.Speak()
	steady, _ := engine(t, t.d, db, lock.Options{})
	testutil.Eventually(t, patience, func() bool {
		lease, err := steady.TryLock(t.Context(), name)
		return err == nil && lease.Unlock(t.Context()) == nil
	}, "the lock can be had again")
}

func (t on) serverIsFrozen() {
	made, name := engine(t, t.d, t.d.open(t, ""), lock.Options{TTL: 2 * time.Second, CallTimeout: time.Second})
	lease, err := made.TryLock(t.Context(), name)
	must(t, err)
	t.d.server.Freeze()
	defer func() {
		if t.Failed() {
			t.d.server.Thaw()
		}
	}()
	_, err = made.TryLock(t.Context(), name)
	wants(t, err, context.DeadlineExceeded)
	if errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("%v: matches ErrNotAcquired, but the database did not say so", err)
	}
	<-lease.Done()
	wants(t, lease.Err(), lock.ErrLost)
	t.d.server.Thaw()
	testutil.Eventually(t, patience, func() bool {
		next, err := made.TryLock(t.Context(), name)
		return err == nil && next.Unlock(t.Context()) == nil
	}, "the lock can be had again")
}

func (t on) serverRestarts() {
	backend := t.d.backend(t, t.d.open(t, ""))
	get := func(name, owner string) (lock.Grant, error) {
		return backend.Acquire(t.Context(), lock.Request{Name: t.Name() + name, Owner: owner, TTL: time.Hour})
	}
	held, err := get("held", "a")
	must(t, err)
	free, err := get("free", "a")
	must(t, err)
	must(t, backend.Release(t.Context(), lock.Claim{Name: t.Name() + "free", Owner: "a"}))
	t.d.server.Kill()
	_, err = get("held", "b")
	if err == nil || errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("got error %v, want one that leaves the outcome open", err)
	}
	t.d.server.Start()
	_, err = get("held", "b")
	wants(t, err, lock.ErrNotAcquired)
	must(t, backend.Renew(t.Context(), lock.Claim{Name: t.Name() + "held", Owner: "a", Token: held.Token}, time.Hour))
	next, err := get("free", "b")
	must(t, err)
	if next.Token <= free.Token {
		t.Errorf("token %d after %d and a restart", next.Token, free.Token)
	}
}
