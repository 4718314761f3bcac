package sqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite" // any driver will do

	"github.com/herdgate/herdgate/lock"
	"github.com/herdgate/herdgate/lock/sqllock"
)

func Example() {
	dir, err := os.MkdirTemp("", "shop")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	db, err := sql.Open("sqlite", filepath.Join(dir, "shop.db"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	backend, err := sqllock.New(db, sqllock.Options{Dialect: sqllock.SQLite})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	if err := backend.CreateTable(ctx); err != nil { // or put backend.Schema() into a migration
		fmt.Println(err)
		return
	}
	engine, err := lock.New(backend, lock.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}

	lease, err := engine.Lock(ctx, "nightly-report")
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = engine.TryLock(ctx, "nightly-report")
	fmt.Println("by somebody else:", errors.Is(err, lock.ErrNotAcquired))
	if err := lease.Unlock(ctx); err != nil {
		fmt.Println(err)
	}
	// Output: by somebody else: true
}

// A job that one instance of the service runs, with a lock in the database of its pgx pool.
func Example_job() { //nolint:testableexamples // it needs a PostgreSQL
	start := func(ctx context.Context, pool *pgxpool.Pool) (*lock.Engine, error) {
		backend, err := sqllock.New(stdlib.OpenDBFromPool(pool), sqllock.Options{Dialect: sqllock.PostgreSQL})
		if err != nil {
			return nil, err
		}
		if err := backend.CreateTable(ctx); err != nil { // or put backend.Schema() into a migration
			return nil, err
		}
		return lock.New(backend, lock.Options{})
	}
	nightly := func(ctx context.Context, locks *lock.Engine, report func(context.Context) error) error {
		lease, err := locks.TryLock(ctx, "nightly-report")
		switch {
		case errors.Is(err, lock.ErrNotAcquired):
			return nil // another instance is at it
		case err != nil:
			return err // the database could not be asked
		}
		err = report(lease.Context(ctx)) // a context that ends when the lease is lost
		if unlocked := lease.Unlock(ctx); errors.Is(unlocked, lock.ErrNotHeld) {
			err = errors.Join(err, unlocked) // another instance may have begun meanwhile
		}
		return err
	}
	_, _ = start, nightly
}

// What the lock protects is in the same database, so a transaction can make sure that it commits only as the holder.
func ExampleBackend_Guard() { //nolint:testableexamples // it needs a PostgreSQL
	pay := func(ctx context.Context, db *sql.DB, backend *sqllock.Backend, lease *lock.Lease) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if _, err := tx.ExecContext(ctx, "UPDATE invoices SET paid = true WHERE due < now()"); err != nil {
			return err
		}
		if err := backend.Guard(ctx, tx, lease.Name(), lease.Token()); err != nil {
			return err // another one has the lock
		}
		return tx.Commit()
	}
	_ = pay
}

// What the lock protects is in another database, so each row refuses who comes after a later holder.
func ExampleFence() { //nolint:testableexamples // it needs a PostgreSQL
	write := func(ctx context.Context, other *sql.DB, lease *lock.Lease) error {
		fence, err := sqllock.NewFence(sqllock.FenceOptions{Dialect: sqllock.PostgreSQL, Table: "accounts", Key: "id"})
		if err != nil {
			return err
		}
		tx, err := other.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if err := fence.Check(ctx, tx, 42, lease.Token()); err != nil {
			return err // sqllock.ErrStaleToken: a later holder has written account 42
		}
		if _, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance - 10 WHERE id = 42"); err != nil {
			return err
		}
		return tx.Commit()
	}
	_ = write
}

// A job that runs in the session that holds the lock is undone when the session dies.
func ExampleSession_Do() { //nolint:testableexamples // it needs a PostgreSQL
	nightly := func(ctx context.Context, sessions *sqllock.Sessions) error {
		session, err := sessions.TryLock(ctx, "nightly-report")
		if err != nil {
			return err // lock.ErrNotAcquired: another instance is at it
		}
		defer session.Unlock(ctx)
		return session.Do(ctx, func(ctx context.Context, conn *sql.Conn) error {
			_, err := conn.ExecContext(ctx, "CALL make_nightly_report()")
			return err
		})
	}
	_ = nightly
}
