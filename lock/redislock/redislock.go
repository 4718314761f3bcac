// Package redislock keeps locks in Redis: one string a lock, set and compared by scripts, so that each step is one
// command and exact.
//
// Backend keeps them in one Redis, or one Cluster, and is as safe as one Redis is: a failover to a replica that has not
// yet seen a lock forgets it, and then two may hold it for up to a TTL. Options.Replicas makes that rare. Set
// Options.Fence and check the token where it matters.
//
// Redlock keeps them on a majority of independent masters, and has no fence.
package redislock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate/lock"
)

// FenceLife is how long the fence of a lock is kept after its last grant.
const FenceLife = 7 * 24 * time.Hour

// Options say how locks are kept. Namespace is required.
type Options struct {
	// Namespace begins the key of every lock. It matches [A-Za-z0-9._-]+. Services that lock the same things share it.
	Namespace string
	// Fence gives each grant a token that is higher than the one before. It costs a second key a lock, which is kept
	// for FenceLife after the last grant. The token is the server's time in microseconds or the last token + 1,
	// what is more: while the key is there the order holds whatever the clock does, and when it expired, was evicted
	// or lost in a failover, the order holds if the clock did not step back.
	Fence bool
	// NoWakeUp leaves waiters to poll: no message is published on release, and no connection is used to receive them.
	NoWakeUp bool
	// Replicas is how many replicas must have acknowledged a grant, or a renewal, before it counts; they are waited for
	// with WAIT, for at most ReplicaTimeout, and fewer are an error that matches ErrNotReplicated. A lock whose grant was
	// refused so is to be released, as after any acquire of unknown outcome, and an Engine does it; a lease whose renewals
	// are refused so is lost at its deadline. So it costs a round trip to a replica and a connection for as long, and
	// nothing can be locked while the replicas are away.
	//
	// It narrows the hole that a failover opens, and does not close it: unless Replicas is all of them, the replica that is
	// promoted may be one without the lock, and what they acknowledge is in their memory only. Zero: none. The client must
	// be a *redis.Client or a *redis.ClusterClient, and have the right to WAIT.
	Replicas int
	// ReplicaTimeout is in whole milliseconds, below the client's ReadTimeout, and should be much shorter than the TTL. A
	// renewal gets no more than a twentieth of it, as lock.Options.CallTimeout says. Zero is DefaultReplicaTimeout.
	ReplicaTimeout time.Duration
}

// Backend is a lock.Backend and a lock.Notifier in Redis. Make it with New; its methods may be called concurrently.
type Backend struct {
	client  redis.UniversalClient
	opts    Options
	keys    keys
	acquire script
	renew   script
	release script
	wakeUps *wakeUps // nil with NoWakeUp
}

var (
	_ lock.Backend  = (*Backend)(nil)
	_ lock.Notifier = (*Backend)(nil)
)

var (
	errNoClient = errors.New("redislock: the client is nil: must be a Redis client")
	errNoWakeUp = errors.New("redislock: wake-ups are off, by Options.NoWakeUp")
	errClosed   = errors.New("redislock: closed")
)

// New makes a backend that uses client, which stays the caller's to close, after the backend. Nothing is sent yet. The
// error names what is out of range.
//
// Set ContextTimeoutEnabled in the client's options: locks are then taken and freed about twice as fast, as no goroutine has
// to stand by that leaves a command whose time is over.
//
// A redis.Ring is no place for locks: when a shard does not answer it uses another, where the lock is free.
func New(client redis.UniversalClient, opts Options) (*Backend, error) {
	if client == nil {
		return nil, errNoClient
	}
	keys, err := newKeys(opts.Namespace)
	if err != nil {
		return nil, err
	}
	if err := validateReplicas(client, opts); err != nil {
		return nil, err
	}
	b := &Backend{
		client:  client,
		opts:    opts,
		keys:    keys,
		acquire: script{source: acquireSource},
		renew:   script{source: renewSource},
		release: script{source: releaseSource},
	}
	if !opts.NoWakeUp {
		b.wakeUps = newWakeUps(client, keys.channel())
	}
	return b, nil
}

// Close ends the subscription for wake-ups, if a waiter has needed one, and waits for it. It may be called again. Locks
// stay as they are, and those who wait go on by polling.
func (b *Backend) Close() {
	if b.wakeUps != nil {
		b.wakeUps.close()
	}
}

// Acquire implements lock.Backend. The TTL is rounded up to whole milliseconds.
func (b *Backend) Acquire(ctx context.Context, req lock.Request) (lock.Grant, error) {
	if err := req.Validate(); err != nil {
		return lock.Grant{}, err
	}
	names := append(make([]string, 0, 2), b.keys.lock(req.Name))
	var fenceLife int64
	if b.opts.Fence {
		names = append(names, b.keys.fence(req.Name))
		fenceLife = millis(max(FenceLife, req.TTL)) // the fence outlives the lock
	}
	var grant lock.Grant
	err := b.replicated(ctx, names[0], func(send sender) error {
		reply, err := b.acquire.run(ctx, send, names, req.Owner, millis(req.TTL), fenceLife).Slice()
		if err != nil {
			return err
		}
		granted, value, err := parseAcquire(reply)
		switch {
		case err != nil:
			return err
		case !granted:
			left := time.Duration(max(0, value)) * time.Millisecond // negative when the lock has no TTL: nothing is known then
			return &lock.ContendedError{Name: req.Name, RetryAfter: left}
		}
		grant.Token = uint64(value)
		return nil
	})
	if err != nil {
		return lock.Grant{}, err
	}
	return grant, nil
}

// parseAcquire takes the two numbers of a reply of acquire.lua. The token comes as a string.
func parseAcquire(reply []any) (granted bool, value int64, err error) {
	if len(reply) == 2 {
		switch v := reply[1].(type) {
		case int64:
			return reply[0] == int64(1), v, nil
		case string:
			value, err = strconv.ParseInt(v, 10, 64)
			return reply[0] == int64(1), value, err
		}
	}
	return false, 0, fmt.Errorf("redislock: acquire was answered by %v: must be two numbers", reply)
}

// Renew implements lock.Backend.
func (b *Backend) Renew(ctx context.Context, claim lock.Claim, ttl time.Duration) error {
	if err := lock.ValidateTTL(ttl); err != nil {
		return err
	}
	names := []string{b.keys.lock(claim.Name)}
	return b.replicated(ctx, names[0], func(send sender) error {
		return held(b.renew.run(ctx, send, names, claim.Owner, claim.Token, millis(ttl)))
	})
}

// Release implements lock.Backend. It is sent exactly once: a second copy would find the lock gone and report
// ErrNotHeld for a release that worked.
func (b *Backend) Release(ctx context.Context, claim lock.Claim) error {
	var channel string
	if b.wakeUps != nil {
		channel = b.keys.channel()
	}
	names := []string{b.keys.lock(claim.Name)}
	return held(b.release.run(ctx, once(b.client), names, claim.Owner, claim.Token, channel, claim.Name))
}

// held reads the answer of a script that compares the claim.
func held(cmd *redis.Cmd) error {
	n, err := cmd.Int64()
	if err == nil && n == 0 {
		return lock.ErrNotHeld
	}
	return err
}

// Capabilities implements lock.Backend.
func (b *Backend) Capabilities() lock.Capabilities {
	// To wait for replicas takes longer than what a caller may be kept for.
	return lock.Capabilities{Fence: b.opts.Fence, Prompt: b.opts.Replicas == 0 && heedful(b.client)}
}

// heedful tells whether the commands of client end at the deadline of their ctx: not where timeouts below 0 say that no
// deadlines are to be set, nor where credentials come from somebody who knows of none. Of a wrapper nothing is known.
func heedful(client redis.UniversalClient) bool {
	switch c := client.(type) {
	case *redis.Client:
		o := c.Options()
		return o.ContextTimeoutEnabled && o.ReadTimeout >= 0 && o.WriteTimeout >= 0 &&
			o.CredentialsProvider == nil && o.StreamingCredentialsProvider == nil
	case *redis.ClusterClient:
		o := c.Options()
		return o.ContextTimeoutEnabled && o.ReadTimeout >= 0 && o.WriteTimeout >= 0 &&
			o.CredentialsProvider == nil && o.StreamingCredentialsProvider == nil
	}
	return false
}

// Notify implements lock.Notifier. All waiters share one subscription, on a connection of its own, which lives until Close.
func (b *Backend) Notify(ctx context.Context, name string) (released <-chan struct{}, stop func(), err error) {
	if b.wakeUps == nil {
		return nil, nil, errNoWakeUp
	}
	return b.wakeUps.add(ctx, name)
}
