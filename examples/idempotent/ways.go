package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/herdgate/herdgate/examples/internal/stores"
	"github.com/herdgate/herdgate/lock"
	"github.com/herdgate/herdgate/lock/redislock"
)

// amount is what each payment adds to the account, in cents.
const amount = 1250

// callTimeout is five times the default: here the deliveries, the embedded Redis and the embedded database have one process.
const callTimeout = 5 * time.Second

// service has one account, which all payments of a run go to.
type service struct {
	db    *stores.DB
	locks *lock.Engine
	run   int64
	pause time.Duration
}

// way is a way to apply a callback. apply returns nil when the payment is applied, by this delivery or another.
type way struct {
	name  string
	apply func(s *service, ctx context.Context, payment int) error
}

func ways() []way {
	return []way{
		{"none", (*service).none},
		{"constraint", (*service).constraint},
		{"lock", (*service).lock},
	}
}

// none looks whether the payment was applied, and applies it if not. Of deliveries that come together, all look first.
func (s *service) none(ctx context.Context, payment int) error {
	var before int
	if err := s.db.Row(ctx, `SELECT COUNT(*) FROM idempotent_log WHERE run = ? AND payment = ?`, s.run, payment).Scan(&before); err != nil {
		return err
	}
	if before > 0 {
		return nil
	}
	if err := s.work(ctx); err != nil {
		return err
	}
	return s.db.InTx(ctx, func(tx stores.Conn) error {
		if _, err := tx.Exec(ctx, `INSERT INTO idempotent_log (run, payment) VALUES (?, ?)`, s.run, payment); err != nil {
			return err
		}
		return s.credit(ctx, tx)
	})
}

// constraint writes down in one transaction that the payment is applied, and what it changes. The primary key lets one
// delivery write; the others wait for its commit and find nothing to do, or, if it fails, one of them is next.
func (s *service) constraint(ctx context.Context, payment int) error {
	insert := s.db.InsertNew(`idempotent_payments`, `(run, payment) VALUES (?, ?)`)
	return s.db.InTx(ctx, func(tx stores.Conn) error {
		inserted, err := tx.Exec(ctx, insert, s.run, payment)
		if err != nil || inserted == 0 {
			return err
		}
		if err := s.work(ctx); err != nil {
			return err
		}
		return s.credit(ctx, tx)
	})
}

// lock lets the deliveries of one payment do what none does one after the other. It is for effects that are not in the
// database: those that a transaction does not undo.
func (s *service) lock(ctx context.Context, payment int) error {
	lease, err := s.locks.Lock(ctx, fmt.Sprintf("payment/%d/%d", s.run, payment))
	if err != nil {
		return err
	}
	err = s.none(lease.Context(ctx), payment)
	// If it was lost before the end, another delivery may have been let in. Without an answer to the release the payment is
	// applied all the same: the lock is free when its TTL has passed.
	if unlocked := lease.Unlock(ctx); err == nil && errors.Is(unlocked, lock.ErrNotHeld) {
		err = unlocked
	}
	return err
}

// work is what there is to do for a payment, such as to ask the provider whether it is genuine.
func (s *service) work(ctx context.Context) error {
	timer := time.NewTimer(s.pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *service) credit(ctx context.Context, tx stores.Conn) error {
	_, err := tx.Exec(ctx, `UPDATE idempotent_accounts SET balance = balance + ? WHERE run = ?`, amount, s.run)
	return err
}

// applied is how many payments there are in the account's balance.
func (s *service) applied(ctx context.Context) (n int, err error) {
	err = s.db.Row(ctx, `SELECT balance FROM idempotent_accounts WHERE run = ?`, s.run).Scan(&n)
	return n / amount, err
}

func makeTables(ctx context.Context, db *stores.DB) error {
	for _, table := range []string{
		`CREATE TABLE IF NOT EXISTS idempotent_accounts (run BIGINT PRIMARY KEY, balance BIGINT NOT NULL)`,
		`CREATE TABLE IF NOT EXISTS idempotent_log (run BIGINT NOT NULL, payment BIGINT NOT NULL)`,
		`CREATE TABLE IF NOT EXISTS idempotent_payments (run BIGINT NOT NULL, payment BIGINT NOT NULL, PRIMARY KEY (run, payment))`,
	} {
		if _, err := db.Exec(ctx, table); err != nil {
			return err
		}
	}
	return nil
}

// open calls f with a service whose account is empty, and removes what it leaves behind.
func open(ctx context.Context, world *stores.Stores, pause time.Duration, f func(*service) error) (err error) {
	backend, err := redislock.New(world.Redis, redislock.Options{Namespace: "idempotent"})
	if err != nil {
		return err
	}
	defer backend.Close()
	locks, err := lock.New(backend, lock.Options{CallTimeout: callTimeout})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, locks.Close(context.WithoutCancel(ctx))) }()

	s := &service{db: world.DB, locks: locks, run: rand.Int64(), pause: pause}
	defer func() { err = errors.Join(err, s.remove(context.WithoutCancel(ctx))) }()
	if _, err := s.db.Exec(ctx, `INSERT INTO idempotent_accounts (run, balance) VALUES (?, 0)`, s.run); err != nil {
		return err
	}
	return f(s)
}

func (s *service) remove(ctx context.Context) error {
	var faults []error
	for _, table := range []string{"idempotent_accounts", "idempotent_log", "idempotent_payments"} {
		_, err := s.db.Exec(ctx, `DELETE FROM `+table+` WHERE run = ?`, s.run)
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}
