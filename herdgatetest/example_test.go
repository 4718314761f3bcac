package herdgatetest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/herdgatetest"
)

// The service under test.

type Product struct {
	ID   string
	Name string
}

type Shop struct {
	products *herdgate.Cache[Product]
}

func NewShop(gate *herdgate.Gate, load herdgate.LoaderFunc[Product]) (*Shop, error) {
	products, err := herdgate.New(gate, "product", load, herdgate.Policy{
		TTL:      time.Minute,
		Stale:    time.Hour,
		LocalTTL: 2 * time.Second,
	})
	return &Shop{products}, err
}

func (s *Shop) Product(ctx context.Context, id string) (Product, error) {
	return s.products.Get(ctx, id)
}

func (s *Shop) Changed(ctx context.Context, id string) error {
	return s.products.Delete(ctx, id)
}

// Its tests: these are examples of how to use the package.

func TestAProductIsLoadedOnceByAFleet(t *testing.T) {
	var database herdgatetest.Origin[Product]
	database.Set("42", Product{ID: "42", Name: "Teapot"})
	database.SetDelay(100 * time.Millisecond)
	newShop := func(gate *herdgate.Gate) (*Shop, error) { return NewShop(gate, database.Load) }
	herdgatetest.Stampede(t, 5, 100, newShop, func(ctx context.Context, s *Shop) (Product, error) {
		return s.Product(ctx, "42")
	})
	herdgatetest.AssertOneLoad(t, &database, "42")
}

func TestAnOldProductIsServedWhileTheDatabaseIsOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var database herdgatetest.Origin[Product]
		database.Set("42", Product{ID: "42", Name: "Teapot"})
		shop := newShop(t, herdgatetest.Open(t), &database)
		wantName(t, shop, "Teapot")
		database.FailAll(errors.New("too many connections"))
		time.Sleep(30 * time.Minute)
		wantName(t, shop, "Teapot")
	})
}

func TestProductsAreServedWhileRedisIsOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var database herdgatetest.Origin[Product]
		database.Set("42", Product{ID: "42", Name: "Teapot"})
		redis := herdgatetest.NewRedis(t)
		shop := newShop(t, redis.Open(), &database)
		redis.Down()
		wantName(t, shop, "Teapot")
		redis.Up()
		time.Sleep(5 * time.Second)
		wantName(t, shop, "Teapot")
	})
}

func TestARenamedProductIsSeenByTheOtherInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var database herdgatetest.Origin[Product]
		database.Set("42", Product{ID: "42", Name: "Teapot"})
		redis := herdgatetest.NewRedis(t)
		here, there := newShop(t, redis.Open(), &database), newShop(t, redis.Open(), &database)
		wantName(t, there, "Teapot")

		database.Set("42", Product{ID: "42", Name: "Kettle"})
		if err := here.Changed(t.Context(), "42"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // for the message
		wantName(t, there, "Kettle")
		herdgatetest.AssertLoads(t, &database, "42", 2)
	})
}

func newShop(t *testing.T, gate *herdgate.Gate, database *herdgatetest.Origin[Product]) *Shop {
	t.Helper()
	shop, err := NewShop(gate, database.Load)
	if err != nil {
		t.Fatal(err)
	}
	return shop
}

func wantName(t *testing.T, shop *Shop, name string) {
	t.Helper()
	if p, err := shop.Product(t.Context(), "42"); p.Name != name || err != nil {
		t.Errorf("the product is %+v, %v, want the name %q", p, err, name)
	}
}
