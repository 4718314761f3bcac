// Package peer opens each cache that the suite compares in the way its own
// documentation recommends, behind one interface. A file is a peer.
package peer

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/zeromicro/go-zero/core/logx"
)

// Peer is an opened cache. Safe for concurrent use.
type Peer interface {
	// Get returns the value of key, loaded by Setup.Load if it is nowhere.
	Get(ctx context.Context, key string) (*Product, error)
	// Set stores a value as a service does that has just written it to its database.
	Set(ctx context.Context, key string, p *Product) error
	// Delete removes a value as a service does whose database has changed.
	Delete(ctx context.Context, key string) error
	// Close ends what Open began, as far as the peer can be ended.
	Close(ctx context.Context) error
}

// Batcher is a peer that gets many keys at once.
type Batcher interface {
	// GetMany returns the values of the keys, loaded where they are nowhere.
	GetMany(ctx context.Context, keys []string) (map[string]*Product, error)
}

// Setup is what a scenario asks of a peer.
type Setup struct {
	Redis       redis.UniversalClient // with Hook already added
	Addr        string                // of the server, for peers that open a client of their own
	Hook        redis.Hook            // for them, too
	Prefix      string                // of the keys and channels in Redis
	TTL         time.Duration         // how long a value is fresh
	Stale       time.Duration         // how long after that it may be served by peers that can
	Memory      bool                  // keep values in the process, too
	Keys        int                   // how many keys there will be
	Spread      bool                  // jitter and early refresh, where a peer has them; else off
	Calm        bool                  // no fault is part of the scenario: wait for Redis as long as go-redis does
	MemoryBytes int64                 // the limit of what is kept in the process, where a peer has one; 0: its default
	MaxLoadsOff bool                  // any number of loads at once, where a peer limits them
	Load        func(ctx context.Context, key string) (*Product, error)
}

// memoryTTL is how long a peer without invalidation keeps a value in the process.
func (s Setup) memoryTTL() time.Duration { return min(s.TTL, time.Minute) }

// Kind is a peer that can be opened.
type Kind struct {
	Name   string
	Module string // whose version the report states; empty for what is written here
	How    string // how it is set up, in a few words
	Tiers  Tiers
	Open   func(ctx context.Context, s Setup) (Peer, error)
}

// Tiers says where a peer can keep values, and so which scenarios it can run.
type Tiers struct {
	Memory    bool // in the process
	Redis     bool // in Redis
	RedisOnly bool // in Redis and not in the process
	Batch     bool // it is a Batcher
	Virtual   bool // its Redis client can be given a connection in virtual time
}

// Kinds are all peers; the first is herdgate.
func Kinds() []Kind {
	return []Kind{
		herdgateKind(), goredisCacheKind(), sturdycKind(), sturdycEarlyKind(), gozeroKind(),
		ristrettoKind(), otterKind(), theineKind(), asideKind(), singleflightKind(), pollLockKind(),
	}
}

// LeftOut are the peers whose modules cannot be had.
func LeftOut() []string {
	return []string{"jetcache-go", "rockscache", "rueidisaside", "samber/hot", "eko/gocache"}
}

// Choose returns the kinds of a comma-separated list, or all for "all", each once and
// in the order of Kinds.
func Choose(list string) ([]Kind, error) {
	kinds := Kinds()
	if list == "all" {
		return kinds, nil
	}
	asked := strings.Split(list, ",")
	for _, name := range asked {
		if slices.Contains(LeftOut(), name) {
			return nil, fmt.Errorf("peer %q is left out: its module cannot be had here; want one of %s, or all", name, names(kinds))
		}
		if !slices.ContainsFunc(kinds, func(k Kind) bool { return k.Name == name }) {
			return nil, fmt.Errorf("no peer %q; want one of %s, or all", name, names(kinds))
		}
	}
	return slices.DeleteFunc(kinds, func(k Kind) bool { return !slices.Contains(asked, k.Name) }), nil
}

func names(kinds []Kind) string {
	var all []string
	for _, k := range kinds {
		all = append(all, k.Name)
	}
	return strings.Join(all, ", ")
}

// Silence keeps the libraries that are linked in from writing to the standard output
// and from telling of each connection that Redis refuses. The program calls it before
// anything else.
func Silence() {
	logx.Disable()
	logging.Disable()
}
