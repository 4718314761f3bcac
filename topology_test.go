package herdgate_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/internal/testutil"
)

// topologyPatience is how long a test waits for servers to agree on something.
const topologyPatience = 30 * time.Second

// traffic is callers that get keys all the time, until end is called.
type traffic struct {
	calls, failed atomic.Int64
	outcomes      [8]atomic.Int64
	first         atomic.Pointer[error]
	stop          context.CancelFunc
	callers       sync.WaitGroup
}

const trafficKeys = 50

// startTraffic starts some callers of each cache. What they get must be of their key.
func startTraffic(t *testing.T, caches ...*herdgate.Cache[string]) *traffic {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	tr := &traffic{stop: stop}
	t.Cleanup(tr.end)
	for _, c := range caches {
		for range 4 {
			tr.callers.Go(func() {
				for ctx.Err() == nil {
					key := fmt.Sprint("key", mathrand.N(trafficKeys))
					r, err := c.Lookup(context.WithoutCancel(ctx), key)
					if err == nil && !strings.HasPrefix(r.Value, key+"#") {
						err = fmt.Errorf("key %s got %q", key, r.Value)
					}
					tr.calls.Add(1)
					tr.outcomes[r.Outcome].Add(1)
					if err != nil {
						tr.failed.Add(1)
						tr.first.CompareAndSwap(nil, &err)
					}
					timer := time.NewTimer(2 * time.Millisecond)
					select {
					case <-timer.C:
					case <-ctx.Done():
					}
					timer.Stop()
				}
			})
		}
	}
	return tr
}

func (tr *traffic) end() {
	tr.stop()
	tr.callers.Wait()
}

// more waits until so many more calls have ended.
func (tr *traffic) more(t *testing.T, n int64) {
	t.Helper()
	want := tr.calls.Load() + n
	testutil.Eventually(t, topologyPatience, func() bool { return tr.calls.Load() >= want }, "the traffic goes on")
}

func (tr *traffic) wantNoErrors(t *testing.T) {
	t.Helper()
	if n := tr.failed.Load(); n > 0 {
		t.Errorf("%d of %d calls failed, the first: %v", n, tr.calls.Load(), *tr.first.Load())
	}
	var text string
	for i := range tr.outcomes {
		text += fmt.Sprintf(" %v %d", herdgate.Outcome(i), tr.outcomes[i].Load())
	}
	t.Logf("%d calls:%s", tr.calls.Load(), text)
}

// untilShared waits until what one gate loads another one gets from Redis: the service is
// back to normal.
func untilShared(t *testing.T, one, other *herdgate.Cache[string]) {
	t.Helper()
	n := 0
	testutil.Eventually(t, topologyPatience, func() bool {
		n++
		key := fmt.Sprint("shared", n)
		a, errA := one.Lookup(t.Context(), key)
		b, errB := other.Lookup(t.Context(), key)
		return errA == nil && errB == nil && a.Outcome == herdgate.OutcomeLoaded && b.Outcome == herdgate.OutcomeRemote && a.Value == b.Value
	}, "one gate gets from Redis what the other has loaded")
}

// untilHeard waits until a delete by one gate reaches the copy of another, by a message:
// the cache must keep copies for long.
func untilHeard(t *testing.T, one, other *herdgate.Cache[string]) {
	t.Helper()
	n := 0
	testutil.Eventually(t, topologyPatience, func() bool {
		n++
		key := fmt.Sprint("heard", n)
		before, errB := other.Lookup(t.Context(), key)
		if again, err := other.Lookup(t.Context(), key); errB != nil || err != nil || again.Outcome != herdgate.OutcomeLocal || one.Delete(t.Context(), key) != nil {
			return false
		}
		for range 100 {
			if after, err := other.Lookup(t.Context(), key); err == nil && after.Value != before.Value {
				return true
			}
			pause(t, 5*time.Millisecond)
		}
		return false
	}, "a gate hears of the other's delete")
}

// topologyPolicy has entries that expire under the traffic.
func topologyPolicy() herdgate.Policy {
	return herdgate.Policy{TTL: 500 * time.Millisecond, Stale: time.Second}
}

func TestAFailoverUnderLoadFailsNoCall(t *testing.T) { // I6
	t.Parallel()
	sentinel := testutil.StartSentinel(t)
	o := newOrigin(10 * time.Millisecond)
	gates := [2]*herdgate.Gate{}
	caches := [2]*herdgate.Cache[string]{}
	slow := [2]*herdgate.Cache[string]{}
	held := newOrigin(3 * time.Second) // longer than the failover, or not
	for i := range gates {
		gates[i] = openGate(t, herdgate.Options{Redis: sentinel.Client(t), Namespace: "test"})
		caches[i] = newCache(t, gates[i], o.load, topologyPolicy())
		var err error
		if slow[i], err = herdgate.New(gates[i], "slow", held.load, herdgate.Policy{TTL: time.Hour}); err != nil {
			t.Fatal(err)
		}
	}
	tr := startTraffic(t, caches[0], caches[1])
	tr.more(t, 500)
	var waiting sync.WaitGroup
	for range 4 {
		waiting.Go(func() {
			if _, err := slow[0].Get(t.Context(), "slow"); err != nil {
				t.Error(err)
			}
		})
	}
	<-held.begun

	sentinel.Failover()

	waiting.Wait()
	untilShared(t, caches[0], caches[1])
	tr.more(t, 500)
	tr.end()
	tr.wantNoErrors(t)
	// Servers that are short of CPU may take longer than LockTTL, or fail over twice.
	if n, lost := held.loads.Load(), slow[0].Stats().LeasesLost; n > 1+int64(lost) {
		t.Errorf("%d loads of a key whose lease was lost %d times, want at most one more", n, lost)
	}
	for i, g := range gates {
		testutil.Eventually(t, topologyPatience, func() bool { return g.Connected() && g.RedisUp() }, fmt.Sprintf("gate %d is well", i))
	}
}

func TestAChangeAfterAFailoverIsHeard(t *testing.T) { // I9
	t.Parallel()
	sentinel := testutil.StartSentinel(t)
	o := newOrigin(time.Millisecond)
	var caches [2]*herdgate.Cache[string]
	for i := range caches {
		g := openGate(t, herdgate.Options{Redis: sentinel.Client(t), Namespace: "test"})
		caches[i] = newCache(t, g, o.load, herdgate.Policy{TTL: time.Hour, LocalTTL: time.Hour})
	}
	untilHeard(t, caches[0], caches[1])
	sentinel.Failover()
	untilShared(t, caches[0], caches[1])
	untilHeard(t, caches[0], caches[1])
	untilHeard(t, caches[1], caches[0])
}

func TestTheClientOfOneNodeOfAClusterIsRefused(t *testing.T) {
	t.Parallel()
	cluster := testutil.StartCluster(t)
	for _, addr := range cluster.Addrs() {
		_, err := herdgate.Open(t.Context(), herdgate.Options{Redis: testutil.NewClient(t, addr), Namespace: "test"})
		bad, ok := errors.AsType[*herdgate.ConfigError](err)
		if !ok || bad.Field != "Options.Redis" || !strings.Contains(bad.Want, "ClusterClient") {
			t.Errorf("Open with a client of one node: %v", err)
		}
	}
	// All keys are on one: then its client has them all, and that of a node which has none,
	// as after a failover under a name that still leads there, may have them again.
	moveSlots(t, cluster, 1, 0, 16384)
	moveSlots(t, cluster, 2, 0, 16384)
	c := newCache(t, openGate(t, herdgate.Options{Redis: testutil.NewClient(t, cluster.Addrs()[0]), Namespace: "test"}), newOrigin(0).load, topologyPolicy())
	get(t, c, "key")
	without := newCache(t, openGate(t, herdgate.Options{Redis: testutil.NewClient(t, cluster.Addrs()[1]), Namespace: "test"}), newOrigin(0).load, topologyPolicy())
	get(t, without, "key")
}

func TestSlotsMoveUnderLoadAndNoCallFails(t *testing.T) { // I6
	t.Parallel()
	cluster := testutil.StartCluster(t)
	o := newOrigin(10 * time.Millisecond)
	var caches [2]*herdgate.Cache[string]
	for i := range caches {
		caches[i] = newCache(t, openGate(t, herdgate.Options{Redis: cluster.Client(t), Namespace: "test"}), o.load, topologyPolicy())
	}
	tr := startTraffic(t, caches[0], caches[1])
	tr.more(t, 500)
	moveSlots(t, cluster, 0, 1, 400)
	moveSlots(t, cluster, 1, 2, 400)
	for i := range trafficKeys { // also those of keys that moved
		key := fmt.Sprint("key", i)
		before := get(t, caches[0], key)
		if err := caches[0].Delete(t.Context(), key); err != nil {
			t.Error(err)
		}
		if after := get(t, caches[0], key); after == before {
			t.Errorf("key %s is %q after a delete, too", key, after)
		}
	}
	untilShared(t, caches[0], caches[1])
	tr.more(t, 500)
	tr.end()
	tr.wantNoErrors(t)
}

// moveSlots moves n slots, with the keys in them, from one node to another.
func moveSlots(t *testing.T, c *testutil.Cluster, from, to, n int) {
	t.Helper()
	id := func(node int) string {
		text, err := c.Nodes[node].Client(t).Do(t.Context(), "CLUSTER", "MYID").Text()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	ctx, cancel := context.WithTimeout(t.Context(), topologyPatience)
	defer cancel()
	out, err := exec.CommandContext(ctx, "redis-cli", "--cluster", "reshard", c.Nodes[0].Addr(),
		"--cluster-from", id(from), "--cluster-to", id(to), "--cluster-slots", strconv.Itoa(n), "--cluster-yes").CombinedOutput()
	if err != nil {
		t.Fatalf("redis-cli cannot move slots: %v\n%s", err, out)
	}
}

func TestAMasterOfAClusterDiesAndNoCallFails(t *testing.T) { // I6
	t.Parallel()
	cluster := testutil.StartCluster(t)
	o := newOrigin(10 * time.Millisecond)
	var caches [2]*herdgate.Cache[string]
	var gates [2]*herdgate.Gate
	for i := range caches {
		gates[i] = openGate(t, herdgate.Options{Redis: cluster.Client(t), Namespace: "test"})
		caches[i] = newCache(t, gates[i], o.load, topologyPolicy())
	}
	tr := startTraffic(t, caches[0], caches[1])
	tr.more(t, 500)
	cluster.Nodes[2].Kill()
	testutil.Eventually(t, topologyPatience, func() bool { return !gates[0].RedisUp() && !gates[1].RedisUp() }, "both gates know that a server is down")
	tr.more(t, 1000)
	cluster.Nodes[2].Restart()
	testutil.Eventually(t, topologyPatience, func() bool { return gates[0].RedisUp() && gates[1].RedisUp() }, "both gates know that it is back")
	tr.more(t, 500)
	tr.end()
	tr.wantNoErrors(t)
}

// What a Clear, or an invalidation of tags, needs is one server: that another one is down
// does not keep it, and with it the whole cache, in the journal.
func TestAJournaledClearNeedsOneServerOfACluster(t *testing.T) { // I6
	t.Parallel()
	for name, change := range map[string]func(context.Context, *herdgate.Cache[string]) error{
		"clear": func(ctx context.Context, c *herdgate.Cache[string]) error { return c.Clear(ctx) },
		"tags":  func(ctx context.Context, c *herdgate.Cache[string]) error { return c.InvalidateTags(ctx, "tag") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := testutil.StartCluster(t)
			o := newOrigin(time.Millisecond)
			g := openGate(t, herdgate.Options{Redis: cluster.Client(t), Namespace: "test", RedisTimeout: 100 * time.Millisecond})
			policy := herdgate.Policy{TTL: time.Hour, LocalTTL: herdgate.Off}
			if name == "tags" {
				policy.Tags = []string{"tag"}
			}
			c := newCache(t, g, o.load, policy)
			get(t, c, "k")
			needed := map[string]string{"clear": "test:g:things", "tags": "test:t:{things}"}[name]
			var its, other *testutil.Redis
			for _, node := range cluster.Nodes {
				direct := node.Client(t)
				do("CONFIG SET cluster-require-full-coverage no")(t, node, direct)
				if err := direct.Exists(t.Context(), needed).Err(); err == nil {
					its = node
				} else {
					other = node
				}
			}
			other.Kill()
			isDown := func() bool {
				for i := range 20 {
					_, _, _ = c.Peek(t.Context(), fmt.Sprint(i))
				}
				return !g.RedisUp()
			}
			testutil.Eventually(t, topologyPatience, isDown, "one server is down")
			its.Freeze()
			if err := change(t.Context(), c); !errors.Is(err, herdgate.ErrJournaled) {
				t.Fatalf("got %v", err)
			}
			its.Thaw()
			testutil.Eventually(t, topologyPatience, func() bool { return g.Stats().Replayed == 1 }, "it is made")
			if g.RedisUp() {
				t.Error("the other server is back")
			}
		})
	}
}

func TestAGateWorksOverTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pool := selfSigned(t, dir)
	port := unusedPort(t)
	server := testutil.StartRedis(t, "--tls-port", strconv.Itoa(port), "--tls-auth-clients", "no",
		"--tls-cert-file", filepath.Join(dir, "cert.pem"), "--tls-key-file", filepath.Join(dir, "key.pem"), "--tls-ca-cert-file", filepath.Join(dir, "cert.pem"))
	o := newOrigin(time.Millisecond)
	var caches [2]*herdgate.Cache[string]
	for i := range caches {
		client := testutil.NewClient(t, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), func(o *redis.Options) {
			o.TLSConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
		})
		caches[i] = newCache(t, openGate(t, herdgate.Options{Redis: client, Namespace: "test"}), o.load, herdgate.Policy{TTL: time.Hour, LocalTTL: time.Hour})
	}
	untilShared(t, caches[0], caches[1])
	untilHeard(t, caches[0], caches[1])
	tr := startTraffic(t, caches[0], caches[1])
	tr.more(t, 200)
	server.Restart()
	untilShared(t, caches[0], caches[1])
	tr.end()
	tr.wantNoErrors(t)
}

// selfSigned writes a certificate for 127.0.0.1 and its key, as cert.pem and key.pem, and
// returns who trusts it.
func selfSigned(t *testing.T, dir string) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	for name, block := range map[string]*pem.Block{
		"cert.pem": {Type: "CERTIFICATE", Bytes: cert}, "key.pem": {Type: "PRIVATE KEY", Bytes: private},
	} {
		text := pem.EncodeToMemory(block)
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
		if name == "cert.pem" {
			pool.AppendCertsFromPEM(text)
		}
	}
	return pool
}

// unusedPort was free a moment ago.
func unusedPort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

func TestASubscriberThatIsKilledHearsAgain(t *testing.T) { // I9
	t.Parallel()
	server := testutil.StartRedis(t)
	o := newOrigin(time.Millisecond)
	var caches [2]*herdgate.Cache[string]
	var gates [2]*herdgate.Gate
	for i := range caches {
		gates[i] = openGate(t, herdgate.Options{Redis: server.Client(t), Namespace: "test"})
		caches[i] = newCache(t, gates[i], o.load, herdgate.Policy{TTL: time.Hour, LocalTTL: time.Hour})
	}
	untilHeard(t, caches[0], caches[1])
	before := get(t, caches[1], "k")
	lost := gates[1].Stats().BusLost
	// Their message may find nobody: both are one step at the server.
	_, err := server.Client(t).TxPipelined(t.Context(), func(tx redis.Pipeliner) error {
		tx.Do(t.Context(), "CLIENT", "KILL", "TYPE", "pubsub")
		tx.Del(t.Context(), entryKey)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, topologyPatience, func() bool { return gates[1].Stats().BusLost > lost && gates[1].Connected() }, "the gate has noticed")
	if after := get(t, caches[1], "k"); after == before {
		t.Errorf("got the copy from before the gap, %q, which Redis has no more", after)
	}
	untilHeard(t, caches[0], caches[1])
}
