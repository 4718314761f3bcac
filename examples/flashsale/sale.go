package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/herdgate/herdgate/examples/internal/stores"
	"github.com/herdgate/herdgate/lock"
	"github.com/herdgate/herdgate/lock/redislock"
)

// luaLife is how long the items of a sale are kept in Redis, if nobody cleans up.
const luaLife = time.Hour

// callTimeout is five times the default: here the buyers, the embedded Redis and the embedded database have one process.
const callTimeout = 5 * time.Second

func makeTables(ctx context.Context, db *stores.DB) error {
	for _, table := range []string{
		`CREATE TABLE IF NOT EXISTS flashsale_stock (sale BIGINT PRIMARY KEY, stock BIGINT NOT NULL, version BIGINT NOT NULL, fence BIGINT NOT NULL)`,
		`CREATE TABLE IF NOT EXISTS flashsale_orders (sale BIGINT NOT NULL, buyer BIGINT NOT NULL, try BIGINT NOT NULL, PRIMARY KEY (sale, buyer, try))`,
	} {
		if _, err := db.Exec(ctx, table); err != nil {
			return err
		}
	}
	return nil
}

// open puts so many items up for sale, and calls f with the shop that has them. What the sale leaves behind is removed.
func open(ctx context.Context, world *stores.Stores, items int, pause time.Duration, f func(*shop) error) (err error) {
	backend, err := redislock.New(world.Redis, redislock.Options{Namespace: "flashsale", Fence: true})
	if err != nil {
		return err
	}
	defer backend.Close()
	locks, err := lock.New(backend, lock.Options{CallTimeout: callTimeout})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, locks.Close(context.WithoutCancel(ctx))) }()

	id := rand.Int64()
	key := fmt.Sprintf("flashsale:{%d}:", id)
	s := &shop{
		db: world.DB, rdb: world.Redis, locks: locks, sale: id, name: strconv.FormatInt(id, 10), left: key + "left", taken: key + "taken",
		buying: func(ctx context.Context) error { return wait(ctx, pause) },
	}
	defer func() { err = errors.Join(err, s.remove(context.WithoutCancel(ctx))) }()
	if _, err := s.db.Exec(ctx, `INSERT INTO flashsale_stock (sale, stock, version, fence) VALUES (?, ?, 0, 0)`, id, items); err != nil {
		return err
	}
	if err := s.rdb.Set(ctx, s.left, items, luaLife).Err(); err != nil {
		return err
	}
	return f(s)
}

func (s *shop) remove(ctx context.Context) error {
	_, orders := s.db.Exec(ctx, `DELETE FROM flashsale_orders WHERE sale = ?`, s.sale)
	_, stock := s.db.Exec(ctx, `DELETE FROM flashsale_stock WHERE sale = ?`, s.sale)
	return errors.Join(orders, stock, s.rdb.Del(ctx, s.left, s.taken).Err())
}

func (s *shop) sold(ctx context.Context) (orders int, err error) {
	err = s.db.Row(ctx, `SELECT COUNT(*) FROM flashsale_orders WHERE sale = ?`, s.sale).Scan(&orders)
	return orders, err
}

// sell opens a sale, lets all buyers in at once, and counts the orders when all of them have gone.
func sell(ctx context.Context, world *stores.Stores, c config, w way) (m measured, err error) {
	err = open(ctx, world, c.items, c.pause, func(s *shop) error {
		var last atomic.Int64 // when the last order was written, in nanoseconds from the start
		statements, commands := world.Sent()
		buyers, all := errgroup.WithContext(ctx)
		start := time.Now()
		for buyer := range c.buyers {
			buyers.Go(func() error {
				for try := range c.tries {
					err := w.buy(s, all, order{buyer, try})
					switch {
					case err == nil:
						last.Store(int64(time.Since(start)))
					case !errors.Is(err, errSoldOut): // else the buyer tries again, as they do
						return fmt.Errorf("try %d of buyer %d: %w", try, buyer, err)
					}
				}
				return nil
			})
		}
		if err := buyers.Wait(); err != nil {
			return err
		}
		statementsNow, commandsNow := world.Sent()
		orders, err := s.sold(ctx)
		if err != nil {
			return err
		}
		m = measured{Name: w.name, Sold: orders, Oversold: max(0, orders-c.items)}
		m.OrdersPerSecond = perSecond(orders, time.Duration(last.Load()))
		m.statements = float64(statementsNow-statements) / float64(max(1, orders))
		m.commands = float64(commandsNow-commands) / float64(max(1, orders))
		return nil
	})
	return m, err
}

const (
	frozenItems = 3
	frozenTTL   = 200 * time.Millisecond
	frozenBuyer = -1
)

// freeze lets a holder of the lock stand still where it hurts most: it has read the stock, has looked at its lease for
// the last time, and is about to write. Its lease ends, others buy all that there is, and then it goes on.
func freeze(ctx context.Context, world *stores.Stores, w way) (f frozen, err error) {
	err = open(ctx, world, frozenItems, time.Millisecond, func(s *shop) error {
		backend, err := redislock.New(world.Redis, redislock.Options{Namespace: "flashsale", Fence: true, NoWakeUp: true})
		if err != nil {
			return err
		}
		defer backend.Close()
		// A frozen process renews nothing.
		locks, err := lock.New(backend, lock.Options{TTL: frozenTTL, Watchdog: lock.Off})
		if err != nil {
			return err
		}
		lease, err := locks.TryLock(ctx, s.name)
		if err != nil {
			return err
		}
		stalled := *s
		stalled.buying = func(ctx context.Context) error {
			select {
			case <-lease.Done():
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			return s.sellOut(ctx, w, 1)
		}
		// Not lease.Context: it would stop the write, in a process that is not frozen.
		f.write = w.late(&stalled, ctx, lease, order{buyer: frozenBuyer})
		if f.write != nil && !errors.Is(f.write, errRefused) {
			return f.write
		}
		if err := lease.Unlock(ctx); !errors.Is(err, lock.ErrNotHeld) {
			return errors.Join(errors.New("the lock of the frozen holder was still its own: nobody else can have had it"), err)
		}
		if err := s.sellOut(ctx, w, 2); err != nil {
			return err
		}
		f.name = w.name
		f.sold, err = s.sold(ctx)
		return errors.Join(err, locks.Close(ctx))
	})
	return f, err
}

// sellOut buys until there is nothing left.
func (s *shop) sellOut(ctx context.Context, w way, buyer int) error {
	for try := 0; ; try++ {
		if err := w.buy(s, ctx, order{buyer, try}); errors.Is(err, errSoldOut) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// id is the order as Redis knows it.
func (o order) id() string { return fmt.Sprintf("%d/%d", o.buyer, o.try) }

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
