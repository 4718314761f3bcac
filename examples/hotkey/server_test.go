package main

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestKeysOfTheEmbeddedServerExpire(t *testing.T) {
	s, err := startServer()
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	rdb := redis.NewClient(&redis.Options{Addr: s.addr()})
	defer func() { _ = rdb.Close() }()
	if err := rdb.Set(t.Context(), "k", "v", 20*time.Millisecond).Err(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for {
		there, err := rdb.Exists(ctx, "k").Result()
		if err != nil {
			t.Fatalf("it is still there: %v", err)
		}
		if there == 0 {
			return
		}
	}
}
