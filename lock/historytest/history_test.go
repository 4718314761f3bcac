package historytest

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	_ "modernc.org/sqlite"

	"github.com/herdgate/herdgate/internal/testutil"
	"github.com/herdgate/herdgate/lock"
	"github.com/herdgate/herdgate/lock/etcdlock"
	"github.com/herdgate/herdgate/lock/locktest"
	"github.com/herdgate/herdgate/lock/memlock"
	"github.com/herdgate/herdgate/lock/redislock"
	"github.com/herdgate/herdgate/lock/sqllock"
	"github.com/herdgate/herdgate/lock/zklock"
)

func TestMain(m *testing.M) { os.Exit(testutil.Main(m, nil)) }

// ttl is short, so that a client that is cut off loses its lock within a history, and long enough for a busy machine.
const ttl = 2 * time.Second

var errLost = errors.New("historytest: the message was lost")

// lossy is a backend that loses some requests and some replies.
func lossy(backend lock.Backend) lock.Backend {
	faults := locktest.NewFaults(backend)
	var calls atomic.Int32
	lose := func(_ context.Context, pass func() error) error {
		switch n := calls.Add(1); {
		case n%7 == 0: // the request
			return errLost
		case n%5 == 0: // the reply
			_ = pass()
			return errLost
		}
		return pass()
	}
	faults.OnAcquire(lose)
	faults.OnRelease(lose)
	return faults
}

// record lets two clients of each backend contend for a lock.
func record(t *testing.T, keep time.Duration, backends ...lock.Backend) []locktest.Hold {
	t.Helper()
	var engines []*lock.Engine
	for _, backend := range backends {
		for range 2 {
			engine, err := lock.New(backend, lock.Options{TTL: ttl, RetryMin: time.Millisecond, RetryMax: 50 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := engine.Close(context.WithoutCancel(t.Context())); err != nil {
					t.Error(err)
				}
			})
			engines = append(engines, engine)
		}
	}
	return locktest.Record(t, engines, "job", 15, keep, backends[0].Capabilities().Shared)
}

// cuts cuts a link some times while work runs.
func cuts(t *testing.T, link *testutil.Link, work func()) {
	t.Helper()
	disturb(t, link.Cut, link.Resume, work)
}

// freezes freezes a link some times while work runs.
func freezes(t *testing.T, link *testutil.Link, work func()) {
	t.Helper()
	disturb(t, link.Freeze, link.Thaw, work)
}

func disturb(t *testing.T, harm, heal, work func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		work()
	}()
	ticker := time.NewTicker(500 * time.Millisecond)
	defer ticker.Stop()
	for n := 0; ; n++ {
		select {
		case <-done:
			heal()
			return
		case <-ticker.C:
		}
		if n%2 == 0 {
			harm()
		} else {
			heal()
		}
	}
}

func TestMemoryIsOneLock(t *testing.T) {
	backend := memlock.New()
	isOfOneLock(t, record(t, 2*time.Millisecond, backend, lossy(backend)))
}

func TestRedisIsOneLock(t *testing.T) {
	server := testutil.StartRedis(t)
	open := func(client redis.UniversalClient) lock.Backend {
		backend, err := redislock.New(client, redislock.Options{Namespace: "test", Fence: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(backend.Close)
		return backend
	}
	backend := open(server.Client(t))
	isOfOneLock(t, record(t, 2*time.Millisecond, backend, lossy(backend)))
}

// The promise of a Redlock holds while no node forgets what it knew, whoever else is out of reach.
func TestRedlockIsOneLockWhileNodesAreOutOfReach(t *testing.T) {
	var nodes [5]*testutil.Redis
	var links [5]*testutil.Link
	for i := range nodes {
		nodes[i] = testutil.StartRedis(t)
		links[i] = testutil.NewLink(t, nodes[i].Addr())
	}
	open := func(addr func(node int) string) lock.Backend {
		var clients []redis.UniversalClient
		for i := range nodes {
			// A client that gives up soon is one whose refused connections count as answers.
			clients = append(clients, testutil.NewClient(t, addr(i), func(o *redis.Options) {
				o.ContextTimeoutEnabled, o.DialerRetries, o.PoolSize = true, 1, 1<<10
			}))
		}
		backend, err := redislock.NewRedlock(clients, redislock.RedlockOptions{Namespace: "test", NodeTimeout: ttl / 10})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(backend.Close)
		return backend
	}
	steady := open(func(node int) string { return nodes[node].Addr() })
	cut := open(func(node int) string { return links[node].Addr() })
	stop := make(chan struct{})
	var faults sync.WaitGroup
	faults.Go(func() { faulty(links[:], stop) })
	history := record(t, 50*time.Millisecond, steady, cut, lossy(steady))
	close(stop)
	faults.Wait()
	isOfOneLock(t, withoutRefusals(history)) // a vote that nobody won refuses all
}

// faulty cuts and freezes links, one or two at a time and then three of them, until stop.
func faulty(links []*testutil.Link, stop <-chan struct{}) {
	ticker := time.NewTicker(300 * time.Millisecond)
	defer ticker.Stop()
	for n := 0; ; n++ {
		for i, link := range links {
			link.Thaw()
			link.Resume()
			switch (i + n) % len(links) {
			case 0:
				link.Cut()
			case 1:
				link.Freeze()
			case 2:
				if n%4 == 3 { // a majority
					link.Cut()
				}
			}
		}
		select {
		case <-stop:
			for _, link := range links {
				link.Thaw()
				link.Resume()
			}
			return
		case <-ticker.C:
		}
	}
}

func openEtcd(t *testing.T, addrs ...string) lock.Backend {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: addrs, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	backend, err := etcdlock.New(client, etcdlock.Options{Namespace: "test"})
	if err != nil {
		t.Fatal(err)
	}
	return backend
}

func TestEtcdIsOneLock(t *testing.T) {
	server := testutil.StartEtcd(t, 1)[0]
	backend := openEtcd(t, server.Addr())
	isOfOneLock(t, record(t, 2*time.Millisecond, backend, lossy(backend)))
}

func TestEtcdIsOneLockWhileConnectionsAreCut(t *testing.T) {
	server := testutil.StartEtcd(t, 1)[0]
	link := testutil.NewLink(t, server.Addr())
	steady, cut := openEtcd(t, server.Addr()), openEtcd(t, link.Addr())
	var history []locktest.Hold
	cuts(t, link, func() { history = record(t, 50*time.Millisecond, steady, cut) })
	isOfOneLock(t, history)
}

func openZooKeeper(t *testing.T, addr string) lock.Backend {
	t.Helper()
	backend, err := zklock.Open(t.Context(), []string{addr}, zklock.Options{Namespace: "test", SessionTimeout: 2 * ttl})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(backend.Close)
	return backend
}

// In ZooKeeper a refusal may be due to another one.
func TestZooKeeperIsOneLock(t *testing.T) {
	server := testutil.StartZooKeeper(t, 1)[0]
	backend := openZooKeeper(t, server.Addr())
	isOfOneLock(t, withoutRefusals(record(t, 2*time.Millisecond, backend, lossy(backend))))
}

func TestZooKeeperIsOneLockWhileConnectionsAreCut(t *testing.T) {
	server := testutil.StartZooKeeper(t, 1)[0]
	link := testutil.NewLink(t, server.Addr())
	steady, cut := openZooKeeper(t, server.Addr()), openZooKeeper(t, link.Addr())
	var history []locktest.Hold
	cuts(t, link, func() { history = record(t, 50*time.Millisecond, steady, cut) })
	isOfOneLock(t, withoutRefusals(history))
}

func openSQL(t *testing.T, dialect sqllock.Dialect, driver, source string) lock.Backend {
	t.Helper()
	db, err := sql.Open(driver, source)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	backend, err := sqllock.New(db, sqllock.Options{Dialect: dialect})
	if err != nil {
		t.Fatal(err)
	}
	if err := backend.CreateTable(t.Context()); err != nil {
		t.Fatal(err)
	}
	return backend
}

func openPostgres(t *testing.T, addr string) lock.Backend {
	t.Helper()
	return openSQL(t, sqllock.PostgreSQL, "pgx", "postgres://test@"+addr+"/postgres?sslmode=disable")
}

func openMariaDB(t *testing.T, addr string) lock.Backend {
	t.Helper()
	return openSQL(t, sqllock.MySQL, "mysql", "root@tcp("+addr+")/test")
}

func TestPostgreSQLIsOneLock(t *testing.T) {
	backend := openPostgres(t, testutil.StartPostgres(t).Addr())
	isOfOneLock(t, record(t, 2*time.Millisecond, backend, lossy(backend)))
}

// A driver that cannot connect fails at once, so connections are not cut here: a history of many calls that may have got
// the lock or not can be explained in too many ways.
func TestPostgreSQLIsOneLockWhileConnectionsFreeze(t *testing.T) {
	server := testutil.StartPostgres(t)
	link := testutil.NewLink(t, server.Addr())
	steady, slow := openPostgres(t, server.Addr()), openPostgres(t, link.Addr())
	var history []locktest.Hold
	freezes(t, link, func() { history = record(t, 50*time.Millisecond, steady, slow) })
	isOfOneLock(t, history)
}

func TestMariaDBIsOneLock(t *testing.T) {
	backend := openMariaDB(t, testutil.StartMariaDB(t).Addr())
	isOfOneLock(t, record(t, 2*time.Millisecond, backend, lossy(backend)))
}

func TestMariaDBIsOneLockWhileConnectionsFreeze(t *testing.T) {
	server := testutil.StartMariaDB(t)
	link := testutil.NewLink(t, server.Addr())
	steady, slow := openMariaDB(t, server.Addr()), openMariaDB(t, link.Addr())
	var history []locktest.Hold
	freezes(t, link, func() { history = record(t, 50*time.Millisecond, steady, slow) })
	isOfOneLock(t, history)
}

func TestSQLiteIsOneLock(t *testing.T) {
	source := "file:" + filepath.Join(t.TempDir(), "locks.db") + "?_pragma=journal_mode(wal)&_pragma=synchronous(off)"
	backend := openSQL(t, sqllock.SQLite, "sqlite", source)
	isOfOneLock(t, record(t, 2*time.Millisecond, backend, lossy(backend)))
}
