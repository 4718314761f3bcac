package herdgate_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate"
)

type Product struct {
	ID   string
	Name string
}

func loadProduct(_ context.Context, id string) (Product, error) {
	if id == "0" {
		return Product{}, herdgate.ErrNotFound
	}
	return Product{ID: id, Name: "Teapot"}, nil // SELECT … FROM products WHERE id = $1
}

func Example() {
	server, err := miniredis.Run() // your Redis
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	ctx := context.Background()

	gate, err := herdgate.Open(ctx, herdgate.Options{Redis: rdb, Namespace: "shop"})
	if err != nil {
		log.Fatal(err)
	}
	defer gate.Close(ctx)

	products, err := herdgate.New(gate, "product", loadProduct, herdgate.Policy{
		TTL:         time.Minute,
		Stale:       10 * time.Minute,
		NegativeTTL: 5 * time.Second,
	})
	if err != nil {
		log.Fatal(err)
	}

	p, err := products.Get(ctx, "42")
	fmt.Println(p.Name, err)

	_, err = products.Get(ctx, "0")
	fmt.Println(errors.Is(err, herdgate.ErrNotFound))
	// Output:
	// Teapot <nil>
	// true
}

func ExampleOpen_withoutRedis() {
	ctx := context.Background()
	gate, err := herdgate.Open(ctx, herdgate.Options{}) // this process alone
	if err != nil {
		log.Fatal(err)
	}
	defer gate.Close(ctx)

	squares, err := herdgate.New(gate, "square", func(_ context.Context, key string) (int, error) {
		return len(key) * len(key), nil
	}, herdgate.Policy{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(squares.Get(ctx, "four"))
	// Output: 16 <nil>
}

func ExampleCache_Lookup() {
	ctx := context.Background()
	gate, _ := herdgate.Open(ctx, herdgate.Options{})
	defer gate.Close(ctx)
	products, _ := herdgate.New(gate, "product", loadProduct, herdgate.Policy{})

	for range 2 {
		r, err := products.Lookup(ctx, "42")
		fmt.Println(r.Value.Name, r.Outcome, r.Stale, err)
	}
	// Output:
	// Teapot loaded false <nil>
	// Teapot local false <nil>
}

func ExampleCache_Fetch() {
	ctx := context.Background()
	gate, _ := herdgate.Open(ctx, herdgate.Options{})
	defer gate.Close(ctx)
	pages, _ := herdgate.New[string](gate, "page", nil, herdgate.Policy{})

	page, err := pages.Fetch(ctx, "/about", func(_ context.Context, path string) (string, error) {
		return "rendered " + path, nil
	})
	fmt.Println(page, err)
	// Output: rendered /about <nil>
}

func ExampleCache_Delete() {
	ctx := context.Background()
	gate, _ := herdgate.Open(ctx, herdgate.Options{})
	defer gate.Close(ctx)
	name := "Teapot"
	products, _ := herdgate.New(gate, "product", func(_ context.Context, id string) (Product, error) {
		return Product{ID: id, Name: name}, nil
	}, herdgate.Policy{})

	p, _ := products.Get(ctx, "42")
	fmt.Println(p.Name)
	name = "Kettle" // first the source …
	if err := products.Delete(ctx, "42"); err != nil {
		log.Fatal(err) // … then the cache
	}
	p, _ = products.Get(ctx, "42")
	fmt.Println(p.Name)
	// Output:
	// Teapot
	// Kettle
}

func ExampleCache_Set() {
	ctx := context.Background()
	gate, _ := herdgate.Open(ctx, herdgate.Options{})
	defer gate.Close(ctx)
	sessions, _ := herdgate.New[string](gate, "session", nil, herdgate.Policy{TTL: time.Hour})

	err := sessions.Set(ctx, "s1", "ann",
		herdgate.EntryTTL(5*time.Minute), // in place of the policy's
		herdgate.EntryStale(herdgate.Off),
		herdgate.EntryTags("user:ann"),
	)
	fmt.Println(err)
	fmt.Println(sessions.Get(ctx, "s1"))
	fmt.Println(sessions.InvalidateTags(ctx, "user:ann"))
	_, err = sessions.Get(ctx, "s1")
	fmt.Println(errors.Is(err, herdgate.ErrNoLoader))
	// Output:
	// <nil>
	// ann <nil>
	// <nil>
	// true
}

func ExampleCache_Expire() {
	ctx := context.Background()
	gate, _ := herdgate.Open(ctx, herdgate.Options{})
	defer gate.Close(ctx)
	products, _ := herdgate.New(gate, "product", loadProduct, herdgate.Policy{Stale: time.Hour})

	_, _ = products.Get(ctx, "42")
	fmt.Println(products.Expire(ctx, "42"))
	r, err := products.Lookup(ctx, "42") // the old one, while it is refreshed behind
	fmt.Println(r.Value.Name, r.Outcome, err)
	// Output:
	// <nil>
	// Teapot stale <nil>
}

func ExampleCache_Clear() {
	ctx := context.Background()
	gate, _ := herdgate.Open(ctx, herdgate.Options{})
	defer gate.Close(ctx)
	products, _ := herdgate.New(gate, "product", loadProduct, herdgate.Policy{})

	_, _ = products.Get(ctx, "42")
	fmt.Println(products.Clear(ctx))
	_, found, err := products.Peek(ctx, "42")
	fmt.Println(found, err)
	// Output:
	// <nil>
	// false <nil>
}

func ExampleCache_InvalidateTags() {
	ctx := context.Background()
	gate, _ := herdgate.Open(ctx, herdgate.Options{})
	defer gate.Close(ctx)
	products, _ := herdgate.NewLoader(gate, "product", branded{}, herdgate.Policy{})

	_, _ = products.Get(ctx, "acme-kettle")
	_, _ = products.Get(ctx, "zeta-teapot")
	fmt.Println(products.InvalidateTags(ctx, "brand:acme"))
	for _, id := range []string{"acme-kettle", "zeta-teapot"} {
		_, found, err := products.Peek(ctx, id)
		fmt.Println(id, found, err)
	}
	// Output:
	// <nil>
	// acme-kettle false <nil>
	// zeta-teapot true <nil>
}

// branded tags each product with its brand.
type branded struct{}

func (branded) Load(_ context.Context, load *herdgate.Load[Product]) (Product, error) {
	brand, name, _ := strings.Cut(load.Key(), "-")
	load.SetTags("brand:"+brand, "kind:"+name)
	return Product{ID: load.Key(), Name: name}, nil
}

func ExampleNewLoader() {
	ctx := context.Background()
	gate, _ := herdgate.Open(ctx, herdgate.Options{})
	defer gate.Close(ctx)
	tokens, err := herdgate.NewLoader(gate, "token", issuer{}, herdgate.Policy{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(tokens.Get(ctx, "mail"))
	// Output: token for mail <nil>
}

// issuer gets access tokens, which say themselves how long they are good for.
type issuer struct{}

// Load implements herdgate.Loader.
func (issuer) Load(_ context.Context, load *herdgate.Load[string]) (string, error) {
	token, expires := "token for "+load.Key(), time.Now().Add(time.Hour) // POST /oauth/token
	load.SetTTL(time.Until(expires) - time.Minute)
	load.SetStale(herdgate.Off) // an old one is of no use
	return token, nil
}

func ExampleLoad_NotModified() {
	etag, body := `"1"`, `{"ID":"42","Name":"Teapot"}`
	source := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("If-None-Match") == etag {
			fmt.Println("304")
			w.WriteHeader(http.StatusNotModified)
			return
		}
		fmt.Println("200")
		w.Header().Set("ETag", etag)
		fmt.Fprint(w, body)
	}))
	defer source.Close()

	ctx := context.Background()
	gate, _ := herdgate.Open(ctx, herdgate.Options{})
	defer gate.Close(ctx)
	products, _ := herdgate.NewLoader(gate, "product", catalogue{source.Client(), source.URL}, herdgate.Policy{})

	for range 2 {
		p, err := products.Refresh(ctx, "42")
		fmt.Println(p.Name, err)
	}
	// Output:
	// 200
	// Teapot <nil>
	// 304
	// Teapot <nil>
}

// catalogue loads products over HTTP, and asks whether they have changed.
type catalogue struct {
	client *http.Client
	url    string
}

func (c catalogue) Load(ctx context.Context, load *herdgate.Load[Product]) (p Product, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+"/products/"+load.Key(), http.NoBody)
	if err != nil {
		return p, err
	}
	if _, _, ok := load.Old(); ok && load.Token() != "" {
		req.Header.Set("If-None-Match", load.Token())
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return p, err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
		load.SetToken(resp.Header.Get("ETag"))
		return p, json.NewDecoder(resp.Body).Decode(&p)
	case http.StatusNotModified:
		return load.NotModified() // fresh anew, for the price of its headers
	case http.StatusNotFound:
		return p, herdgate.ErrNotFound
	}
	return p, fmt.Errorf("catalogue: %s", resp.Status)
}

func ExampleLoad_DoNotCache() {
	ctx := context.Background()
	gate, _ := herdgate.Open(ctx, herdgate.Options{})
	defer gate.Close(ctx)
	pages, _ := herdgate.NewLoader(gate, "page", renderer{}, herdgate.Policy{})

	for range 2 {
		page, err := pages.Get(ctx, "home")
		fmt.Println(page, err)
	}
	fmt.Println("loads:", pages.Stats().Loads)
	// Output:
	// home without recommendations <nil>
	// home without recommendations <nil>
	// loads: 2
}

// renderer makes pages of what answers in time.
type renderer struct{}

func (renderer) Load(_ context.Context, load *herdgate.Load[string]) (string, error) {
	load.DoNotCache() // the recommendations did not answer: good enough for now, not to be kept
	return load.Key() + " without recommendations", nil
}

func ExampleMux() {
	ctx := context.Background()
	gate, _ := herdgate.Open(ctx, herdgate.Options{})
	defer gate.Close(ctx)

	mux := herdgate.NewMux[string]()
	err := errors.Join(
		mux.HandleFunc("user:*", func(_ context.Context, key string) (string, error) {
			return "profile of " + strings.TrimPrefix(key, "user:"), nil
		}, herdgate.Policy{TTL: time.Minute, Stale: time.Hour}),
		mux.HandleFunc("user:*:cart", func(context.Context, string) (string, error) {
			return "2 teapots", nil
		}, herdgate.Policy{TTL: 5 * time.Second}),
	)
	if err != nil {
		log.Fatal(err)
	}
	shop, _ := herdgate.NewLoader(gate, "shop", mux, herdgate.Policy{})

	fmt.Println(shop.Get(ctx, "user:ann"))
	fmt.Println(shop.Get(ctx, "user:ann:cart"))
	_, err = shop.Get(ctx, "order:7")
	fmt.Println(errors.Is(err, herdgate.ErrNoLoader))
	// Output:
	// profile of ann <nil>
	// 2 teapots <nil>
	// true
}

func ExampleCache_Keep() {
	ctx := context.Background()
	gate, _ := herdgate.Open(ctx, herdgate.Options{})
	defer gate.Close(ctx)
	loaded := make(chan struct{}, 1)
	rates, _ := herdgate.New(gate, "rate", func(context.Context, string) (float64, error) {
		loaded <- struct{}{}
		return 1.08, nil
	}, herdgate.Policy{TTL: time.Minute, EarlyFraction: 0.8})

	// Loaded in a moment, and after 48 s of each minute by one instance of the fleet, until
	// nobody has read it here for a day.
	if err := rates.Keep(ctx, 24*time.Hour, "EUR/USD"); err != nil {
		log.Fatal(err)
	}
	<-loaded
	fmt.Println(rates.Get(ctx, "EUR/USD"))
	fmt.Println("loads:", rates.Stats().Loads)
	rates.Unkeep("EUR/USD")
	// Output:
	// 1.08 <nil>
	// loads: 1
}

func ExamplePolicy_softTimeout() {
	ctx := context.Background()
	gate, _ := herdgate.Open(ctx, herdgate.Options{})
	defer gate.Close(ctx)
	prices, _ := herdgate.New(gate, "price", func(context.Context, string) (int, error) { return 12, nil }, herdgate.Policy{
		TTL:         time.Minute,
		Stale:       time.Hour,
		SoftTimeout: time.Second, // the new price if it comes within a second, else the old one
	})

	_ = prices.Set(ctx, "tea", 10)
	_ = prices.Expire(ctx, "tea")
	fmt.Println(prices.Get(ctx, "tea"))
	// Output: 12 <nil>
}

func ExampleWithDefault() {
	ctx := context.Background()
	gate, _ := herdgate.Open(ctx, herdgate.Options{})
	defer gate.Close(ctx)
	load := func(context.Context, string) ([]string, error) { return nil, errors.New("too many connections") }
	related, _ := herdgate.New(gate, "related", load, herdgate.Policy{},
		herdgate.WithDefault(func(string, error) ([]string, bool) { return []string{"bestsellers"}, true }))

	r, err := related.Lookup(ctx, "42")
	fmt.Println(r.Value, r.Outcome, err)
	// Output: [bestsellers] default <nil>
}

func ExampleWithClone() {
	ctx := context.Background()
	gate, _ := herdgate.Open(ctx, herdgate.Options{})
	defer gate.Close(ctx)
	load := func(context.Context, string) ([]string, error) { return []string{"tea", "pot"}, nil }
	tags, _ := herdgate.New(gate, "tag", load, herdgate.Policy{}, herdgate.WithClone(slices.Clone[[]string]))

	mine, _ := tags.Get(ctx, "42")
	mine[0] = "changed"
	fmt.Println(tags.Get(ctx, "42"))
	// Output: [tea pot] <nil>
}

func ExampleWithSize() {
	ctx := context.Background()
	gate, _ := herdgate.Open(ctx, herdgate.Options{LocalBytes: 256 << 20})
	defer gate.Close(ctx)
	load := func(context.Context, string) (map[string]int, error) { return map[string]int{"tea": 3}, nil }
	stock, _ := herdgate.New(gate, "stock", load, herdgate.Policy{},
		herdgate.WithSize(func(m map[string]int) int64 { return 48 + 64*int64(len(m)) })) // a map takes more than its encoding

	fmt.Println(stock.Get(ctx, "store-1"))
	// Output: map[tea:3] <nil>
}

func ExampleBackoffError() {
	ctx := context.Background()
	gate, _ := herdgate.Open(ctx, herdgate.Options{})
	defer gate.Close(ctx)
	load := func(context.Context, string) (int, error) { return 0, errors.New("too many connections") }
	prices, _ := herdgate.New(gate, "price", load, herdgate.Policy{FailureBackoff: time.Minute})

	_, err := prices.Get(ctx, "tea")
	if failed, ok := errors.AsType[*herdgate.LoadError](err); ok {
		fmt.Println(failed.Key, failed.Err)
	}
	_, err = prices.Get(ctx, "tea") // nobody in the fleet asks again so soon
	if backoff, ok := errors.AsType[*herdgate.BackoffError](err); ok {
		fmt.Println(backoff.Key, backoff.Failures, backoff.Reason, backoff.RetryAfter > 50*time.Second)
	}
	// Output:
	// tea too many connections
	// tea 1 error true
}

func ExampleConfigError() {
	ctx := context.Background()
	gate, _ := herdgate.Open(ctx, herdgate.Options{})
	defer gate.Close(ctx)

	_, err := herdgate.New(gate, "product", loadProduct, herdgate.Policy{TTL: 1500 * time.Microsecond})
	fmt.Println(err)
	// Output: herdgate: Policy.TTL is 1.5ms, want a positive duration in whole milliseconds, or 0 for the default
}

func ExampleCache_Stats() {
	ctx := context.Background()
	gate, _ := herdgate.Open(ctx, herdgate.Options{})
	defer gate.Close(ctx)
	products, _ := herdgate.New(gate, "product", loadProduct, herdgate.Policy{})

	for range 3 {
		_, _ = products.Get(ctx, "42")
	}
	s := products.Stats()
	fmt.Println(s.Gets, s.Loaded, s.Local, s.Loads)
	// Output: 3 1 2 1
}

func ExampleObserver() {
	ctx := context.Background()
	gate, _ := herdgate.Open(ctx, herdgate.Options{Observer: herdgate.ObserverFunc(func(e herdgate.Event) {
		if e.Kind == herdgate.EventLoad {
			fmt.Println("loaded", e.Cache, e.Key, e.Err)
		}
	})})
	defer gate.Close(ctx)
	products, _ := herdgate.New(gate, "product", loadProduct, herdgate.Policy{})
	_, _ = products.Get(ctx, "42")
	fmt.Println(products.Stats().Loads)
	// Output:
	// loaded product 42 <nil>
	// 1
}

func ExampleCache_Refresh() {
	ctx := context.Background()
	gate, _ := herdgate.Open(ctx, herdgate.Options{})
	defer gate.Close(ctx)
	price := 10
	prices, _ := herdgate.New(gate, "price", func(context.Context, string) (int, error) { return price, nil }, herdgate.Policy{})

	fmt.Println(prices.Get(ctx, "tea"))
	price = 12
	fmt.Println(prices.Refresh(ctx, "tea"))
	fmt.Println(prices.Get(ctx, "tea"))
	// Output:
	// 10 <nil>
	// 12 <nil>
	// 12 <nil>
}

func ExampleCache_Peek() {
	ctx := context.Background()
	gate, _ := herdgate.Open(ctx, herdgate.Options{})
	defer gate.Close(ctx)
	products, _ := herdgate.New(gate, "product", loadProduct, herdgate.Policy{})

	_, found, _ := products.Peek(ctx, "42")
	fmt.Println(found)
	_, _ = products.Get(ctx, "42")
	r, found, _ := products.Peek(ctx, "42")
	fmt.Println(found, r.Value.Name)
	// Output:
	// false
	// true Teapot
}

func ExampleCache_GetMany() {
	ctx := context.Background()
	gate, _ := herdgate.Open(ctx, herdgate.Options{})
	defer gate.Close(ctx)
	load := herdgate.BatchLoaderFunc[Product](func(_ context.Context, ids []string) (map[string]Product, error) {
		fmt.Println("SELECT … WHERE id IN", ids)
		products := map[string]Product{}
		for _, id := range ids {
			if id != "0" { // there is no such product: it is left out
				products[id] = Product{ID: id, Name: "Product " + id}
			}
		}
		return products, nil
	})
	products, _ := herdgate.NewLoader(gate, "product", load, herdgate.Policy{})

	for range 2 {
		found, err := products.GetMany(ctx, []string{"1", "2", "0"})
		fmt.Println(len(found), found["2"].Name, err)
	}
	// Output:
	// SELECT … WHERE id IN [1 2 0]
	// 2 Product 2 <nil>
	// 2 Product 2 <nil>
}

func ExampleManyError() {
	ctx := context.Background()
	gate, _ := herdgate.Open(ctx, herdgate.Options{})
	defer gate.Close(ctx)
	products, _ := herdgate.New(gate, "product", func(_ context.Context, id string) (Product, error) {
		if id == "2" {
			return Product{}, errors.New("shard is down")
		}
		return Product{ID: id, Name: "Product " + id}, nil
	}, herdgate.Policy{})

	found, err := products.GetMany(ctx, []string{"1", "2", "3"})
	fmt.Println(len(found), err)
	if many, ok := errors.AsType[*herdgate.ManyError](err); ok {
		for _, failed := range many.Failed {
			fmt.Println(failed.Key)
		}
	}
	// Output:
	// 2 herdgate: 1 of 3 keys of product failed, the first "2": herdgate: load product "2": shard is down
	// 2
}

func ExampleCache_Warm() {
	ctx := context.Background()
	gate, _ := herdgate.Open(ctx, herdgate.Options{})
	defer gate.Close(ctx)
	products, _ := herdgate.New(gate, "product", loadProduct, herdgate.Policy{})

	err := products.Warm(ctx, []string{"1", "2", "3", "4", "5"}, herdgate.WarmOptions{
		Batch:    2,
		Progress: func(done, total int) { fmt.Println(done, "of", total) },
	})
	fmt.Println(err)
	// Output:
	// 2 of 5
	// 4 of 5
	// 5 of 5
	// <nil>
}
