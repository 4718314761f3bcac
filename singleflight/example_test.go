package singleflight_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/herdgate/herdgate/singleflight"
)

func ExampleGroup_Do() {
	var g singleflight.Group[string, struct{}, string]
	v, joined, err := g.Do(context.Background(), "user:7", func(f *singleflight.Flight[string, struct{}, string]) (string, error) {
		return "loaded " + f.Key(), f.Context().Err()
	})
	fmt.Println(v, joined, err)
	// Output: loaded user:7 false <nil>
}

func ExampleGroup_Join() {
	var g singleflight.Group[string, struct{}, int]
	release := make(chan struct{})
	first, joined := g.Join(context.Background(), "key", func(*singleflight.Flight[string, struct{}, int]) (int, error) {
		<-release
		return 42, nil
	})
	fmt.Println("joined:", joined)
	second, joined := g.Join(context.Background(), "key", nil) // joins: no function needed
	fmt.Println("joined:", joined)

	impatient, leave := context.WithCancel(context.Background())
	leave()
	_, err := first.Wait(impatient)
	fmt.Println("who leaves:", err)

	close(release)
	v, err := second.Wait(context.Background())
	fmt.Println("who stays:", v, err)
	// Output:
	// joined: false
	// joined: true
	// who leaves: context canceled
	// who stays: 42 <nil>
}

// When the thing behind a key changes, a running load may carry the old value:
// detach it, so that callers from now on get a load of their own.
func ExampleFlight_Detach() {
	var g singleflight.Group[string, struct{}, string]
	release := make(chan struct{})
	old, _ := g.Join(context.Background(), "key", func(*singleflight.Flight[string, struct{}, string]) (string, error) {
		<-release
		return "before the change", nil
	})

	g.Each("key", func(f *singleflight.Flight[string, struct{}, string]) { f.Detach() })
	v, joined, _ := g.Do(context.Background(), "key", func(*singleflight.Flight[string, struct{}, string]) (string, error) {
		return "after the change", nil
	})
	fmt.Println(v, joined)

	close(release)
	v, _ = old.Wait(context.Background())
	fmt.Println(v)
	// Output:
	// after the change false
	// before the change
}

func ExampleGroup_Wait() {
	var g singleflight.Group[int, struct{}, int]
	for key := range 3 {
		g.Join(context.Background(), key, func(f *singleflight.Flight[int, struct{}, int]) (int, error) {
			return 0, f.Context().Err()
		})
	}
	fmt.Println(g.Wait(context.Background()))
	// Output: <nil>
}

func ExampleProtect() {
	_, err := singleflight.Protect(func() (int, error) { panic("out of ideas") })
	var p *singleflight.PanicError
	fmt.Println(errors.As(err, &p), err)
	// Output: true panic: out of ideas
}
