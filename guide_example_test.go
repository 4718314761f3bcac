package herdgate_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/codec"
	"github.com/herdgate/herdgate/lock"
	"github.com/herdgate/herdgate/lock/redislock"
)

// The code of docs/guide.md that no other example has.

func Example_policies() {
	// Pages, products, profiles: an old one is better than a slow one, or none.
	catalog := herdgate.Policy{
		TTL:   time.Minute,
		Stale: time.Hour, // outlives an outage of the database
	}
	// Prices, stock: some seconds old at most, also if a message is lost.
	price := herdgate.Policy{
		TTL:      2 * time.Second,
		Stale:    3 * time.Second, // with TTL the oldest that is ever served
		LocalTTL: time.Second,
	}
	// Permissions: nothing past its TTL, and Redis is asked each time.
	permission := herdgate.Policy{
		TTL:         30 * time.Second,
		Stale:       herdgate.Off,
		LocalTTL:    herdgate.Off,
		NegativeTTL: herdgate.Off,
	}
	// A report that a query makes in a minute: callers who find none give up early,
	// the load goes on without them.
	report := herdgate.Policy{
		TTL:           time.Hour,
		Stale:         24 * time.Hour,
		EarlyFraction: 0.9,
		LoadTimeout:   3 * time.Minute,
		WaitTimeout:   5 * time.Second,
	}

	ctx := context.Background()
	server, err := miniredis.Run() // your Redis
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	gate, _ := herdgate.Open(ctx, herdgate.Options{Redis: rdb})
	defer gate.Close(ctx)
	for name, policy := range map[string]herdgate.Policy{"catalog": catalog, "price": price, "permission": permission, "report": report} {
		if _, err := herdgate.New(gate, name, loadProduct, policy); err != nil {
			fmt.Println(name, err)
		}
	}
	// Output:
}

// table is a database with an outbox.
type table struct {
	rows   map[string]Product
	outbox []string
}

func (t *table) load(_ context.Context, id string) (Product, error) {
	p, ok := t.rows[id]
	if !ok {
		return Product{}, fmt.Errorf("product %s: %w", id, herdgate.ErrNotFound)
	}
	return p, nil
}

func (t *table) save(_ context.Context, p Product) error {
	t.rows[p.ID] = p
	t.outbox = append(t.outbox, p.ID)
	return nil
}

func (t *table) pending(context.Context) ([]string, error) { return t.outbox, nil }

func (t *table) done(context.Context, ...string) error {
	t.outbox = nil
	return nil
}

type products struct {
	db    *table
	cache *herdgate.Cache[Product]
}

func (s *products) Save(ctx context.Context, p Product) error {
	// One transaction: UPDATE products …; INSERT INTO outbox …
	if err := s.db.save(ctx, p); err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx) // the row has changed: the client's leaving must not matter
	if s.cache.Delete(ctx, p.ID) == nil {
		return s.db.done(ctx, p.ID) // DELETE FROM outbox …
	}
	return nil // saved; Relay will tell the cache
}

// Relay is called each second: it finishes what a Save could not.
func (s *products) Relay(ctx context.Context) error {
	ids, err := s.db.pending(ctx) // SELECT … FROM outbox
	if err != nil || len(ids) == 0 {
		return err
	}
	if err := s.cache.Delete(ctx, ids...); err != nil {
		return err
	}
	return s.db.done(ctx, ids...)
}

func Example_write() {
	ctx := context.Background()
	gate, _ := herdgate.Open(ctx, herdgate.Options{})
	defer gate.Close(ctx)
	s := &products{db: &table{rows: map[string]Product{}}}
	s.cache, _ = herdgate.New(gate, "product", s.db.load, herdgate.Policy{NegativeTTL: time.Minute})

	_, err := s.cache.Get(ctx, "42")
	fmt.Println(errors.Is(err, herdgate.ErrNotFound)) // and remembered
	fmt.Println(s.Save(ctx, Product{ID: "42", Name: "Teapot"}), s.Relay(ctx))
	p, err := s.cache.Get(ctx, "42")
	fmt.Println(p.Name, err)
	// Output:
	// true
	// <nil> <nil>
	// Teapot <nil>
}

// answer is what an HTTP service says to an error of Get.
func answer(w http.ResponseWriter, err error) {
	var backoff *herdgate.BackoffError
	switch {
	case errors.Is(err, herdgate.ErrNotFound):
		http.Error(w, "there is no such product", http.StatusNotFound)
	case errors.As(err, &backoff): // nobody asks the source before that
		w.Header().Set("Retry-After", fmt.Sprint(1+int(backoff.RetryAfter.Seconds())))
		http.Error(w, "try again later", http.StatusServiceUnavailable)
	default: // the load failed, or took too long
		http.Error(w, "try again later", http.StatusServiceUnavailable)
	}
}

func Example_errors() {
	ctx := context.Background()
	gate, _ := herdgate.Open(ctx, herdgate.Options{})
	defer gate.Close(ctx)
	load := func(context.Context, string) (Product, error) { return Product{}, errors.New("too many connections") }
	products, _ := herdgate.New(gate, "product", load, herdgate.Policy{FailureBackoff: time.Minute})

	for range 2 {
		_, err := products.Get(ctx, "42")
		w := header{}
		answer(w, err)
		fmt.Println(w.Header().Get("Retry-After") != "")
	}
	// Output:
	// false
	// true
}

// header is an http.ResponseWriter of which only the header counts.
type header http.Header

func (h header) Header() http.Header       { return http.Header(h) }
func (header) Write(p []byte) (int, error) { return len(p), nil }
func (header) WriteHeader(int)             {}

func Example_encoding() {
	policy := herdgate.Policy{
		Codec:       codec.JSON(), // for entries that others read, too
		Compression: herdgate.S2,  // from 1 KiB on, where it saves an eighth
		MaxSize:     1 << 20,      // what is larger is not stored
		Version:     1,            // of Product and Codec
	}

	ctx := context.Background()
	gate, _ := herdgate.Open(ctx, herdgate.Options{})
	defer gate.Close(ctx)
	products, err := herdgate.New(gate, "product", loadProduct, policy)
	if err != nil {
		log.Fatal(err)
	}
	p, err := products.Get(ctx, "42")
	fmt.Println(p.Name, err)
	// Output: Teapot <nil>
}

func Example_rollingDeploy() {
	ctx := context.Background()
	server, err := miniredis.Run() // your Redis
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()

	type ProductV2 struct {
		ID, Name string
		Cents    int
	}
	before, _ := herdgate.Open(ctx, herdgate.Options{Redis: rdb, Namespace: "shop"})
	defer before.Close(ctx)
	old, _ := herdgate.New(before, "product", loadProduct, herdgate.Policy{})
	after, _ := herdgate.Open(ctx, herdgate.Options{Redis: rdb, Namespace: "shop"})
	defer after.Close(ctx)
	load := func(_ context.Context, id string) (ProductV2, error) { return ProductV2{id, "Teapot", 1999}, nil }
	next, _ := herdgate.New(after, "product", load, herdgate.Policy{Version: 1})

	v2, err := next.Lookup(ctx, "42")
	fmt.Println("new:", v2.Value.Cents, v2.Outcome, err)
	for range 2 {
		v1, err := old.Lookup(ctx, "42") // leaves the newer entry alone, and loads for itself
		fmt.Println("old:", v1.Value.Name, v1.Outcome, err)
	}
	// Output:
	// new: 1999 loaded <nil>
	// old: Teapot unlocked <nil>
	// old: Teapot local <nil>
}

// tenantKey is injective as no tenant has a slash in its name.
func tenantKey(tenant, id string) string { return tenant + "/" + id }

func Example_tenants() {
	ctx := context.Background()
	gate, _ := herdgate.Open(ctx, herdgate.Options{})
	defer gate.Close(ctx)
	orders, _ := herdgate.NewLoader(gate, "order", tenantOrders{}, herdgate.Policy{})

	fmt.Println(orders.Get(ctx, tenantKey("acme", "7")))
	fmt.Println(orders.InvalidateTags(ctx, "tenant:acme")) // all of one tenant, at the cost of one command
	_, found, _ := orders.Peek(ctx, tenantKey("acme", "7"))
	fmt.Println(found)
	// Output:
	// order 7 of acme <nil>
	// <nil>
	// false
}

// tenantOrders loads what belongs to a tenant.
type tenantOrders struct{}

func (tenantOrders) Load(_ context.Context, load *herdgate.Load[string]) (string, error) {
	tenant, id, ok := strings.Cut(load.Key(), "/")
	if !ok {
		return "", herdgate.ErrNotFound
	}
	load.SetTags("tenant:" + tenant)
	return "order " + id + " of " + tenant, nil // WHERE tenant = $1 AND id = $2
}

func Example_clients() {
	rdb := redis.NewClient(&redis.Options{
		Addr:                  "127.0.0.1:6379",
		ContextTimeoutEnabled: true, // reads heed deadlines, and need no goroutine of their own for that
		DialerRetries:         1,    // a refused connection fails at once, not after five tries
	})
	defer rdb.Close()
	cluster := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs:                 []string{"127.0.0.1:7000"},
		ContextTimeoutEnabled: true,
		// No ReadOnly, RouteByLatency or RouteRandomly: a replica may not know of a Delete yet.
	})
	defer cluster.Close()
	fmt.Println(rdb.Options().DialerRetries, cluster.Options().ReadOnly)
	// Output: 1 false
}

func Example_locker() {
	ctx := context.Background()
	server, err := miniredis.Run() // the Redis that caches
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	another, err := miniredis.Run() // one beside it that does nothing but lock
	if err != nil {
		log.Fatal(err)
	}
	defer another.Close()
	beside := redis.NewClient(&redis.Options{Addr: another.Addr()})
	defer beside.Close()

	locks, err := redislock.New(beside, redislock.Options{Namespace: "shop"})
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	locker, err := lock.New(locks, lock.Options{TTL: 3 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	gate, err := herdgate.Open(ctx, herdgate.Options{Redis: rdb, Namespace: "shop", Locker: locker})
	if err != nil {
		log.Fatal(err)
	}
	defer gate.Close(ctx)

	reports, err := herdgate.New(gate, "report", func(context.Context, string) (string, error) {
		fmt.Println("locked there:", another.Keys())
		return "42 sales", nil
	}, herdgate.Policy{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(reports.Get(ctx, "today"))
	fmt.Println("locked there:", another.Keys())
	// Output:
	// locked there: [shop:lock:{shop:b:report:{today%7D}]
	// 42 sales <nil>
	// locked there: []
}
