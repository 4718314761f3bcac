package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	bsm "github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	_ "github.com/go-sql-driver/mysql"
	"github.com/go-zookeeper/zk"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
	_ "modernc.org/sqlite"

	"github.com/herdgate/herdgate/bench/internal/rig"
	"github.com/herdgate/herdgate/internal/testutil"
	"github.com/herdgate/herdgate/lock"
	"github.com/herdgate/herdgate/lock/etcdlock"
	"github.com/herdgate/herdgate/lock/memlock"
	"github.com/herdgate/herdgate/lock/redislock"
	"github.com/herdgate/herdgate/lock/sqllock"
	"github.com/herdgate/herdgate/lock/zklock"
)

const (
	lockName = "job"
	ttl      = lock.DefaultTTL // of all, where it is not the library's own default
	dialing  = 30 * time.Second
)

// A place is where locks are kept, one or more servers.
type place struct {
	name string
	// start returns the addresses. It is called in h.Try.
	start func(h *rig.Host) []string
}

func places() []place {
	return []place{
		{"memory", func(*rig.Host) []string { return nil }},
		{"redis", func(h *rig.Host) []string { return redisServers(h, 1) }},
		{"redis x5", func(h *rig.Host) []string { return redisServers(h, 5) }},
		{"etcd", func(h *rig.Host) []string { return []string{testutil.StartEtcd(h, 1)[0].Addr()} }},
		{"zookeeper", func(h *rig.Host) []string { return []string{testutil.StartZooKeeper(h, 1)[0].Addr()} }},
		{"postgresql", func(h *rig.Host) []string {
			return []string{"postgres://test@" + testutil.StartPostgres(h).Addr() + "/postgres?sslmode=disable"}
		}},
		{"mariadb", func(h *rig.Host) []string { return []string{"root@tcp(" + testutil.StartMariaDB(h).Addr() + ")/test"} }},
		{"sqlite", func(h *rig.Host) []string {
			path := filepath.Join(h.TempDir(), "locks.db")
			return []string{"file:" + path + "?_pragma=journal_mode(wal)&_pragma=busy_timeout(1000)&_pragma=synchronous(off)"}
		}},
	}
}

func redisServers(h *rig.Host, n int) (addrs []string) {
	for range n {
		addrs = append(addrs, testutil.StartRedis(h).Addr())
	}
	return addrs
}

// A contender waits for the lock, and returns what frees it.
type contender func(context.Context) (unlock func(context.Context) error, err error)

// A kind is a lock of a library.
type kind struct {
	name, place, about string
	peer               bool // not herdgate's
	// open makes n contenders for the one lock of this kind. Clean-ups go to h.
	open func(ctx context.Context, h *rig.Host, addrs []string, n int) ([]contender, error)
}

func kinds() []kind {
	return []kind{
		{name: "memlock", place: "memory", about: "lock/memlock", open: openMemory},
		{name: "redislock", place: "redis", about: "lock/redislock, its defaults: waiters are woken", open: openRedis(redislock.Options{})},
		{name: "redislock-fence", place: "redis", about: "with Fence", open: openRedis(redislock.Options{Fence: true})},
		{name: "redislock-poll", place: "redis", about: "with NoWakeUp: waiters poll after 50 ms, doubling to 1 s", open: openRedis(redislock.Options{NoWakeUp: true})},
		{name: "bsm", place: "redis", about: "bsm/redislock, LinearBackoff(100 ms) as in its examples; by default it does not wait", peer: true, open: openBSM},
		{name: "redsync", place: "redis", about: "go-redsync, its defaults: 32 tries, 50 to 250 ms apart", peer: true, open: openRedsync},
		{name: "redlock", place: "redis x5", about: "redislock.NewRedlock, NodeTimeout 400 ms as redsync's", open: openRedlock},
		{name: "redsync-5", place: "redis x5", about: "go-redsync over the same five, its defaults", peer: true, open: openRedsync},
		{name: "etcdlock", place: "etcd", about: "lock/etcdlock", open: openEtcd},
		{name: "etcd-mutex", place: "etcd", about: "concurrency.Mutex of etcd's client, a session for each contender", peer: true, open: openEtcdMutex},
		{name: "zklock", place: "zookeeper", about: "lock/zklock", open: openZooKeeper},
		{name: "zk-lock", place: "zookeeper", about: "Lock of go-zookeeper/zk, one session", peer: true, open: openZKLock},
		{name: "sqllock-postgresql", place: "postgresql", about: "lock/sqllock: rows", open: openSQL("pgx", sqllock.PostgreSQL)},
		{name: "sessions-postgresql", place: "postgresql", about: "sqllock.Sessions: advisory locks", open: openSessions("pgx", sqllock.PostgreSQL)},
		{name: "sqllock-mariadb", place: "mariadb", about: "lock/sqllock: rows", open: openSQL("mysql", sqllock.MySQL)},
		{name: "sessions-mariadb", place: "mariadb", about: "sqllock.Sessions: GET_LOCK", open: openSessions("mysql", sqllock.MySQL)},
		{name: "sqllock-sqlite", place: "sqlite", about: "lock/sqllock: rows of a file, WAL, synchronous off", open: openSQL("sqlite", sqllock.SQLite)},
	}
}

func about() string {
	var b strings.Builder
	for _, k := range kinds() {
		fmt.Fprintf(&b, "  %-20s %s: %s\n", k.name, k.place, k.about)
	}
	return b.String()
}

// herdgate makes contenders that share an engine, as the goroutines of a service do.
func herdgate(ctx context.Context, h *rig.Host, backend lock.Backend, n int) ([]contender, error) {
	engine, err := lock.New(backend, lock.Options{TTL: ttl})
	if err != nil {
		return nil, err
	}
	h.Cleanup(func() { _ = engine.Close(context.WithoutCancel(ctx)) })
	return repeat(n, func(ctx context.Context) (func(context.Context) error, error) {
		lease, err := engine.Lock(ctx, lockName)
		if err != nil {
			return nil, err
		}
		return lease.Unlock, nil
	}), nil
}

func repeat(n int, c contender) []contender {
	all := make([]contender, n)
	for i := range all {
		all[i] = c
	}
	return all
}

func openMemory(ctx context.Context, h *rig.Host, _ []string, n int) ([]contender, error) {
	return herdgate(ctx, h, memlock.New(), n)
}

// redisClients have go-redis's defaults, and mind deadlines, which Redlocks are lost
// without.
func redisClients(h *rig.Host, addrs []string) []redis.UniversalClient {
	var all []redis.UniversalClient
	for _, addr := range addrs {
		client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
		h.Cleanup(func() { _ = client.Close() })
		all = append(all, client)
	}
	return all
}

func openRedis(opts redislock.Options) func(context.Context, *rig.Host, []string, int) ([]contender, error) {
	return func(ctx context.Context, h *rig.Host, addrs []string, n int) ([]contender, error) {
		opts.Namespace = fmt.Sprintf("herdgate.%t.%t", opts.Fence, opts.NoWakeUp)
		backend, err := redislock.New(redisClients(h, addrs)[0], opts)
		if err != nil {
			return nil, err
		}
		h.Cleanup(backend.Close)
		return herdgate(ctx, h, backend, n)
	}
}

func openRedlock(ctx context.Context, h *rig.Host, addrs []string, n int) ([]contender, error) {
	// By default a node that has not answered within 50 ms counts as down, which on a busy machine is no outage.
	opts := redislock.RedlockOptions{Namespace: "redlock", NodeTimeout: 400 * time.Millisecond}
	backend, err := redislock.NewRedlock(redisClients(h, addrs), opts)
	if err != nil {
		return nil, err
	}
	h.Cleanup(backend.Close)
	return herdgate(ctx, h, backend, n)
}

func openBSM(_ context.Context, h *rig.Host, addrs []string, n int) ([]contender, error) {
	locker := bsm.New(redisClients(h, addrs)[0])
	every := &bsm.Options{RetryStrategy: bsm.LinearBackoff(100 * time.Millisecond)}
	return repeat(n, func(ctx context.Context) (func(context.Context) error, error) {
		// Without a deadline it gives up after the TTL.
		ctx, cancel := context.WithTimeout(ctx, time.Hour)
		defer cancel()
		held, err := locker.Obtain(ctx, "bsm", ttl, every)
		if err != nil {
			return nil, err
		}
		return held.Release, nil
	}), nil
}

func openRedsync(_ context.Context, h *rig.Host, addrs []string, n int) ([]contender, error) {
	var pools []redsyncredis.Pool
	for _, client := range redisClients(h, addrs) {
		pools = append(pools, goredis.NewPool(client))
	}
	rs := redsync.New(pools...)
	return repeat(n, func(ctx context.Context) (func(context.Context) error, error) {
		mutex := rs.NewMutex("redsync")
		for {
			err := mutex.LockContext(ctx)
			if err == nil {
				break
			}
			// After 32 tries it gives up, which is not the end of the wait that is measured.
			taken := (*redsync.ErrTaken)(nil)
			if ctx.Err() != nil || !errors.Is(err, redsync.ErrFailed) && !errors.As(err, &taken) {
				return nil, err
			}
		}
		return func(ctx context.Context) error {
			if ok, err := mutex.UnlockContext(ctx); !ok {
				return fmt.Errorf("redsync: unlock: %w", err)
			}
			return nil
		}, nil
	}), nil
}

func etcdClient(h *rig.Host, addrs []string) (*clientv3.Client, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: addrs, DialTimeout: dialing, Logger: zap.NewNop()})
	if err == nil {
		h.Cleanup(func() { _ = client.Close() })
	}
	return client, err
}

func openEtcd(ctx context.Context, h *rig.Host, addrs []string, n int) ([]contender, error) {
	client, err := etcdClient(h, addrs)
	if err != nil {
		return nil, err
	}
	backend, err := etcdlock.New(client, etcdlock.Options{Namespace: "herdgate"})
	if err != nil {
		return nil, err
	}
	return herdgate(ctx, h, backend, n)
}

func openEtcdMutex(_ context.Context, h *rig.Host, addrs []string, n int) ([]contender, error) {
	client, err := etcdClient(h, addrs)
	if err != nil {
		return nil, err
	}
	all := make([]contender, n)
	for i := range all {
		// Mutexes of one session do not exclude each other.
		session, err := concurrency.NewSession(client)
		if err != nil {
			return nil, err
		}
		h.Cleanup(func() { _ = session.Close() })
		mutex := concurrency.NewMutex(session, "/mutex")
		all[i] = func(ctx context.Context) (func(context.Context) error, error) {
			return mutex.Unlock, mutex.Lock(ctx)
		}
	}
	return all, nil
}

func openZooKeeper(ctx context.Context, h *rig.Host, addrs []string, n int) ([]contender, error) {
	ctx, cancel := context.WithTimeout(ctx, dialing)
	defer cancel()
	backend, err := zklock.Open(ctx, addrs, zklock.Options{Namespace: "herdgate"})
	if err != nil {
		return nil, err
	}
	h.Cleanup(backend.Close)
	return herdgate(ctx, h, backend, n)
}

// silent is a logger.
type silent struct{}

func (silent) Printf(string, ...any) {}

func openZKLock(_ context.Context, h *rig.Host, addrs []string, n int) ([]contender, error) {
	conn, events, err := zk.Connect(addrs, zklock.DefaultSessionTimeout, zk.WithLogger(silent{}), zk.WithLogInfo(false))
	if err != nil {
		return nil, err
	}
	h.Cleanup(func() {
		conn.Close()
		for range events { // until it has ended
		}
	})
	return repeat(n, func(context.Context) (func(context.Context) error, error) {
		held := zk.NewLock(conn, "/zk-lock", zk.WorldACL(zk.PermAll))
		return func(context.Context) error { return held.Unlock() }, held.Lock() // neither takes a ctx
	}), nil
}

func openDB(h *rig.Host, driver, source string) (*sql.DB, error) {
	db, err := sql.Open(driver, source)
	if err == nil {
		db.SetMaxIdleConns(mostContenders) // else each of many contenders opens a connection for each statement
		h.Cleanup(func() { _ = db.Close() })
	}
	return db, err
}

func openSQL(driver string, dialect sqllock.Dialect) func(context.Context, *rig.Host, []string, int) ([]contender, error) {
	return func(ctx context.Context, h *rig.Host, addrs []string, n int) ([]contender, error) {
		db, err := openDB(h, driver, addrs[0])
		if err != nil {
			return nil, err
		}
		backend, err := sqllock.New(db, sqllock.Options{Dialect: dialect})
		if err != nil {
			return nil, err
		}
		if err := backend.CreateTable(ctx); err != nil {
			return nil, err
		}
		return herdgate(ctx, h, backend, n)
	}
}

func openSessions(driver string, dialect sqllock.Dialect) func(context.Context, *rig.Host, []string, int) ([]contender, error) {
	return func(_ context.Context, h *rig.Host, addrs []string, n int) ([]contender, error) {
		db, err := openDB(h, driver, addrs[0])
		if err != nil {
			return nil, err
		}
		sessions, err := sqllock.NewSessions(db, sqllock.SessionOptions{Dialect: dialect, Namespace: "herdgate"})
		if err != nil {
			return nil, err
		}
		return repeat(n, func(ctx context.Context) (func(context.Context) error, error) {
			session, err := sessions.Lock(ctx, lockName)
			if err != nil {
				return nil, err
			}
			return session.Unlock, nil
		}), nil
	}
}
