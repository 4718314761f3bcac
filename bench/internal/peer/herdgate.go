package peer

import (
	"context"
	"errors"
	"time"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/bench/internal/rig"
)

func herdgateKind() Kind {
	return Kind{
		Name: "herdgate", How: "defaults but for TTL, Stale and the local tier",
		Tiers: Tiers{Memory: true, Redis: true, RedisOnly: true, Batch: true, Virtual: true}, Open: openHerdgate,
	}
}

type herdgatePeer struct {
	*herdgate.Cache[*Product]

	gate *herdgate.Gate
}

// busPatience is how long the first subscription may take; without it nothing would
// be kept in memory.
const busPatience = 10 * time.Second

func openHerdgate(ctx context.Context, s Setup) (Peer, error) {
	options := herdgate.Options{Redis: s.Redis, Namespace: s.Prefix, LocalBytes: s.MemoryBytes}
	if s.Calm {
		// A busy machine then makes all peers slow, not one of them degraded.
		options.RedisTimeout = 3 * time.Second
	}
	if s.MaxLoadsOff {
		options.MaxLoads = herdgate.Off
	}
	policy := herdgate.Policy{TTL: s.TTL, Stale: s.Stale}
	if !s.Memory {
		policy.LocalTTL = herdgate.Off
	} else if s.Stale == 0 && s.TTL >= time.Hour {
		policy.LocalTTL = s.TTL // nothing but hits is wanted
	}
	if !s.Spread {
		policy.Jitter, policy.EarlyBeta = herdgate.Off, herdgate.Off
	}
	gate, err := herdgate.Open(ctx, options)
	if err != nil {
		return nil, err
	}
	// Not by an Observer, which each of the calls to be measured would tell, too.
	for began := time.Now(); err == nil && gate.Stats().BusConfirmed == 0; {
		if err = rig.Sleep(ctx, time.Millisecond); err == nil && time.Since(began) > busPatience {
			err = errors.New("the bus is not confirmed")
		}
	}
	cache, newErr := herdgate.New(gate, "product", s.Load, policy)
	if err = errors.Join(err, newErr); err != nil {
		return nil, errors.Join(err, gate.Close(ctx))
	}
	return herdgatePeer{Cache: cache, gate: gate}, nil
}

func (p herdgatePeer) Set(ctx context.Context, key string, v *Product) error {
	return p.Cache.Set(ctx, key, v)
}

func (p herdgatePeer) Delete(ctx context.Context, key string) error { return p.Cache.Delete(ctx, key) }

func (p herdgatePeer) Close(ctx context.Context) error { return p.gate.Close(ctx) }
