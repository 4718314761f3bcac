package main

import (
	"context"
	_ "embed"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate/examples/internal/stores"
	"github.com/herdgate/herdgate/lock"
)

// shop sells the items of one sale: one row of stock, and a row for each order.
type shop struct {
	db     *stores.DB
	rdb    *redis.Client
	locks  *lock.Engine // whose leases have fences, which only one way uses
	sale   int64
	name   string // of the lock
	left   string // Redis keys of the way lua
	taken  string
	buying func(ctx context.Context) error // what there is to do for an order before it is written
}

// order is one try of one buyer.
type order struct{ buyer, try int }

// way is a way to sell one item. buy returns nil if the order got it.
type way struct {
	name string
	buy  func(s *shop, ctx context.Context, o order) error
	// late is the part of buy that is done while the lock is held, for the ways that have one.
	late func(s *shop, ctx context.Context, lease *lock.Lease, o order) error
}

func ways() []way {
	return []way{
		{name: "none", buy: (*shop).none},
		{name: "lock", buy: (*shop).lock, late: (*shop).locked},
		{name: "for-update", buy: (*shop).forUpdate},
		{name: "version", buy: (*shop).version},
		{name: "atomic", buy: (*shop).atomic},
		{name: "lua", buy: (*shop).lua},
		{name: "fence", buy: (*shop).fence, late: (*shop).fenced},
	}
}

var (
	errSoldOut = errors.New("sold out")

	// errRefused says that the row of stock was not any more what the condition of an UPDATE asks for.
	errRefused = errors.New("the write was refused")
)

// none reads the stock, and writes what it has computed from it: an item less. Two buyers who have read 7 both write 6.
func (s *shop) none(ctx context.Context, o order) error {
	var stock int64
	if err := s.db.Row(ctx, `SELECT stock FROM flashsale_stock WHERE sale = ?`, s.sale).Scan(&stock); err != nil {
		return err
	}
	if stock <= 0 {
		return errSoldOut
	}
	if err := s.buying(ctx); err != nil {
		return err
	}
	return s.order(ctx, o, `UPDATE flashsale_stock SET stock = ? WHERE sale = ?`, stock-1, s.sale)
}

// lock lets one buyer in the fleet at a time do what none does.
func (s *shop) lock(ctx context.Context, o order) error {
	return s.holding(ctx, o, s.locked)
}

func (s *shop) locked(ctx context.Context, _ *lock.Lease, o order) error { return s.none(ctx, o) }

// holding calls f while the lock is held, with a context that ends with the lease. The lease is renewed meanwhile.
func (s *shop) holding(ctx context.Context, o order, f func(ctx context.Context, lease *lock.Lease, o order) error) error {
	lease, err := s.locks.Lock(ctx, s.name)
	if err != nil {
		return err
	}
	err = f(lease.Context(ctx), lease, o)
	// If it was lost before the end, nobody knows what the others did. Without an answer to the release the order stands
	// all the same: the lock is free when its TTL has passed.
	if unlocked := lease.Unlock(ctx); err == nil && errors.Is(unlocked, lock.ErrNotHeld) {
		err = unlocked
	}
	return err
}

// forUpdate lets the database hold the row between the read and the write.
func (s *shop) forUpdate(ctx context.Context, o order) error {
	return s.db.InTx(ctx, func(tx stores.Conn) error {
		var stock int64
		if err := tx.Row(ctx, `SELECT stock FROM flashsale_stock WHERE sale = ?`+s.db.ForUpdate(), s.sale).Scan(&stock); err != nil {
			return err
		}
		if stock <= 0 {
			return errSoldOut
		}
		if err := s.buying(ctx); err != nil {
			return err
		}
		return s.orderIn(ctx, tx, o, `UPDATE flashsale_stock SET stock = ? WHERE sale = ?`, stock-1, s.sale)
	})
}

// version writes only if nobody has written since the read, and else begins again.
func (s *shop) version(ctx context.Context, o order) error {
	for {
		var stock, version int64
		if err := s.db.Row(ctx, `SELECT stock, version FROM flashsale_stock WHERE sale = ?`, s.sale).Scan(&stock, &version); err != nil {
			return err
		}
		if stock <= 0 {
			return errSoldOut
		}
		if err := s.buying(ctx); err != nil {
			return err
		}
		err := s.order(ctx, o, `UPDATE flashsale_stock SET stock = ?, version = ? WHERE sale = ? AND version = ?`, stock-1, version+1, s.sale, version)
		if !errors.Is(err, errRefused) {
			return err
		}
		if err := wait(ctx, rand.N(50*time.Millisecond)); err != nil { // those who lost together do not come back together
			return err
		}
	}
}

// atomic lets the database compute the stock: there is nothing between the read and the write.
func (s *shop) atomic(ctx context.Context, o order) error {
	if err := s.buying(ctx); err != nil {
		return err
	}
	err := s.order(ctx, o, `UPDATE flashsale_stock SET stock = stock - 1 WHERE sale = ? AND stock > 0`, s.sale)
	if errors.Is(err, errRefused) {
		return errSoldOut
	}
	return err
}

var (
	//go:embed take.lua
	takeSource string
	//go:embed putback.lua
	putBackSource string
)

// putBackTime is how long an item that was not sold may take to come back.
const putBackTime = 2 * time.Second

// lua takes an item in Redis first, so that the database hears only from buyers who can get one. What Redis says is no
// proof: it may forget a write, or keep an item for an order whose process has died. So the database has the last word,
// by its condition on the stock, and an item that it did not sell is put back.
func (s *shop) lua(ctx context.Context, o order) error {
	keys := []string{s.left, s.taken}
	taken, err := redis.NewScript(takeSource).Run(ctx, s.rdb, keys, o.id()).Bool()
	switch {
	case err != nil: // perhaps only the reply was lost, and an item is taken
		return errors.Join(err, s.putBack(ctx, o))
	case !taken:
		return errSoldOut
	}
	if err := s.atomic(ctx, o); err != nil {
		return errors.Join(err, s.putBack(ctx, o))
	}
	return nil
}

// putBack is done also for a buyer who has gone. If the database's answer was lost and the order is there after all, one
// buyer too many comes to the database, and is refused there.
func (s *shop) putBack(ctx context.Context, o order) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), putBackTime)
	defer cancel()
	return redis.NewScript(putBackSource).Run(ctx, s.rdb, []string{s.left, s.taken}, o.id()).Err()
}

// fence is lock for those who cannot rely on the lease: a holder may be frozen after it has looked at the lease for the
// last time, and wake up when the lock is another's.
func (s *shop) fence(ctx context.Context, o order) error {
	return s.holding(ctx, o, s.fenced)
}

// fenced writes the lease's token first, and everything else only while the row has that token. To compare tokens in the
// last write alone would not do: after this holder has read the stock, and before it writes, a former holder could wake
// up and write, and its sale would be undone. From the first write on, lower tokens are refused.
func (s *shop) fenced(ctx context.Context, lease *lock.Lease, o order) error {
	token := int64(lease.Token())
	claimed, err := s.db.Exec(ctx, `UPDATE flashsale_stock SET fence = ? WHERE sale = ? AND fence < ?`, token, s.sale, token)
	switch {
	case err != nil:
		return err
	case claimed == 0:
		return errRefused
	}
	var stock int64
	if err := s.db.Row(ctx, `SELECT stock FROM flashsale_stock WHERE sale = ?`, s.sale).Scan(&stock); err != nil {
		return err
	}
	if stock <= 0 {
		return errSoldOut
	}
	if err := s.buying(ctx); err != nil {
		return err
	}
	return s.order(ctx, o, `UPDATE flashsale_stock SET stock = ? WHERE sale = ? AND fence = ?`, stock-1, s.sale, token)
}

// order changes the stock and writes the order down, both or neither: errRefused if the condition of the update did not
// hold.
func (s *shop) order(ctx context.Context, o order, update string, args ...any) error {
	return s.db.InTx(ctx, func(tx stores.Conn) error { return s.orderIn(ctx, tx, o, update, args...) })
}

func (s *shop) orderIn(ctx context.Context, tx stores.Conn, o order, update string, args ...any) error {
	changed, err := tx.Exec(ctx, update, args...)
	switch {
	case err != nil:
		return err
	case changed == 0:
		return errRefused
	}
	_, err = tx.Exec(ctx, `INSERT INTO flashsale_orders (sale, buyer, try) VALUES (?, ?, ?)`, s.sale, o.buyer, o.try)
	return err
}
