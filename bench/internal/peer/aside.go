package peer

import (
	"context"

	"github.com/redis/go-redis/v9"
	"github.com/vmihailenco/msgpack/v5"
)

func asideKind() Kind {
	return Kind{
		Name: "aside", How: "GET; on a miss or an error load and SET",
		Tiers: Tiers{Redis: true, RedisOnly: true, Batch: true, Virtual: true},
		Open:  func(_ context.Context, s Setup) (Peer, error) { return aside{s}, nil },
	}
}

// aside is plain cache-aside, as services write it without a library.
type aside struct{ s Setup }

func (p aside) name(key string) string { return p.s.Prefix + ":" + key }

func (p aside) Get(ctx context.Context, key string) (*Product, error) {
	if data, err := p.s.Redis.Get(ctx, p.name(key)).Bytes(); err == nil {
		v := new(Product)
		if err := msgpack.Unmarshal(data, v); err == nil {
			return v, nil
		}
	}
	v, err := p.s.Load(ctx, key)
	if err == nil {
		_ = p.Set(ctx, key, v) // the value is good without
	}
	return v, err
}

// GetMany asks for all keys in one pipeline and loads what is missing one by one.
func (p aside) GetMany(ctx context.Context, keys []string) (map[string]*Product, error) {
	found := make([]*redis.StringCmd, len(keys))
	_, _ = p.s.Redis.Pipelined(ctx, func(pipe redis.Pipeliner) error { // each command has its own error
		for i, key := range keys {
			found[i] = pipe.Get(ctx, p.name(key))
		}
		return nil
	})
	values := make(map[string]*Product, len(keys))
	for i, key := range keys {
		v := new(Product)
		data, err := found[i].Bytes()
		if err == nil {
			err = msgpack.Unmarshal(data, v)
		}
		if err != nil {
			if v, err = p.s.Load(ctx, key); err != nil {
				return values, err
			}
			_ = p.Set(ctx, key, v)
		}
		values[key] = v
	}
	return values, nil
}

func (p aside) Set(ctx context.Context, key string, v *Product) error {
	data, err := msgpack.Marshal(v)
	if err != nil {
		return err
	}
	return p.s.Redis.Set(ctx, p.name(key), data, p.s.TTL).Err()
}

func (p aside) Delete(ctx context.Context, key string) error {
	return p.s.Redis.Del(ctx, p.name(key)).Err()
}

func (aside) Close(context.Context) error { return nil }
