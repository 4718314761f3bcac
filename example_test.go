package herdgate_test

import (
	"context"
	"errors"
	"fmt"
	"log"
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
