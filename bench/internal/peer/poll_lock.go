package peer

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/vmihailenco/msgpack/v5"
	"golang.org/x/sync/singleflight"
)

func pollLockKind() Kind {
	return Kind{
		Name: "poll-lock", How: `"hash + 100 ms poll lock", re-enacted from its description: value, owner and lock time in one hash, a lock of 3 s that is not renewed, losers poll each 100 ms, a deleted value stays readable while it is rebuilt`,
		Tiers: Tiers{Redis: true, RedisOnly: true, Virtual: true}, Open: openPollLock,
	}
}

const (
	pollEvery  = 100 * time.Millisecond
	pollLocked = 3 * time.Second
	pollKept   = 10 * time.Second // how long a deleted value stays
)

// The scripts keep value (v), owner (o) and the end of the lock (l, server ms) in the
// hash KEYS[1]. l is 0 in a deleted value.
const (
	// ARGV: owner, lock ms. Returns the value or false, and 1 if the caller shall load.
	pollGet = `
local v, l = redis.call('HGET', KEYS[1], 'v'), redis.call('HGET', KEYS[1], 'l')
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
if (l and tonumber(l) < now) or (not l and not v) then
	redis.call('HSET', KEYS[1], 'l', now + ARGV[2], 'o', ARGV[1])
	return {v, 1}
end
return {v, 0}`
	// ARGV: owner, value, ttl ms. Stores the value if the lock is the owner's.
	pollSet = `
if redis.call('HGET', KEYS[1], 'o') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'v', ARGV[2])
redis.call('HDEL', KEYS[1], 'l', 'o')
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1`
	// ARGV: ms that the value is kept.
	pollDelete = `
redis.call('HSET', KEYS[1], 'l', 0)
redis.call('HDEL', KEYS[1], 'o')
redis.call('PEXPIRE', KEYS[1], ARGV[1])`
)

type pollLock struct {
	s             Setup
	group         singleflight.Group
	get, set, del *redis.Script
}

func openPollLock(_ context.Context, s Setup) (Peer, error) {
	return &pollLock{s: s, get: redis.NewScript(pollGet), set: redis.NewScript(pollSet), del: redis.NewScript(pollDelete)}, nil
}

func (p *pollLock) keys(key string) []string { return []string{p.s.Prefix + ":" + key} }

func (p *pollLock) Get(ctx context.Context, key string) (*Product, error) {
	v, err, _ := p.group.Do(key, func() (any, error) { return p.fetch(ctx, key) })
	product, _ := v.(*Product)
	return product, err
}

func (p *pollLock) fetch(ctx context.Context, key string) (*Product, error) {
	owner := rand.Text()
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-pause.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		answer, err := p.get.Run(ctx, p.s.Redis, p.keys(key), owner, pollLocked.Milliseconds()).Slice()
		if err != nil {
			return nil, err
		}
		data, held := answer[0].(string)
		mine := answer[1] == int64(1)
		switch {
		case mine && held: // the old value serves while one process loads
			go func() { _, _ = p.load(context.WithoutCancel(ctx), key, owner) }()
			fallthrough
		case held:
			v := new(Product)
			return v, msgpack.Unmarshal([]byte(data), v)
		case mine:
			return p.load(ctx, key, owner)
		}
		pause.Reset(pollEvery)
	}
}

func (p *pollLock) load(ctx context.Context, key, owner string) (*Product, error) {
	v, err := p.s.Load(ctx, key)
	if err != nil {
		return nil, err
	}
	return v, p.store(ctx, key, owner, v)
}

func (p *pollLock) store(ctx context.Context, key, owner string, v *Product) error {
	data, err := msgpack.Marshal(v)
	if err != nil {
		return err
	}
	return p.set.Run(ctx, p.s.Redis, p.keys(key), owner, data, p.s.TTL.Milliseconds()).Err()
}

func (p *pollLock) Set(ctx context.Context, key string, v *Product) error {
	owner := rand.Text()
	if err := p.s.Redis.HSet(ctx, p.keys(key)[0], "o", owner).Err(); err != nil {
		return err
	}
	return p.store(ctx, key, owner, v)
}

func (p *pollLock) Delete(ctx context.Context, key string) error {
	err := p.del.Run(ctx, p.s.Redis, p.keys(key), pollKept.Milliseconds()).Err()
	if errors.Is(err, redis.Nil) { // the script returns nothing
		return nil
	}
	return err
}

func (*pollLock) Close(context.Context) error { return nil }
