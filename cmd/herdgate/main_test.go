package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/internal/testutil"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestMain(m *testing.M) {
	redis.SetLogger(silent{})
	os.Exit(testutil.Main(m, nil))
}

// answer is what a run of the program said.
type answer struct {
	code     int
	out, err string
}

// tool runs the program in this process.
func tool(t *testing.T, args ...string) answer {
	t.Helper()
	var out, errOut bytes.Buffer
	code := run(t.Context(), args, output{Writer: &out}, &errOut)
	return answer{code, out.String(), errOut.String()}
}

// expect fails the test unless the program ended with code and said to standard error
// what is wanted, "" for nothing.
func (a answer) expect(t *testing.T, code int, errOut string) {
	t.Helper()
	if a.code != code || (errOut == "") != (a.err == "") || !strings.Contains(a.err, errOut) {
		t.Errorf("exit code %d, want %d; standard error %q, want %q; standard output:\n%s", a.code, code, a.err, errOut, a.out)
	}
}

type product struct {
	ID    string
	Name  string
	Price int64
	Tags  []string `msgpack:"tags,omitempty"`
}

// shop is a service with a Redis of its own.
type shop struct {
	*testing.T
	server *testutil.Redis
	rdb    *redis.Client
}

func newShop(t *testing.T) *shop {
	t.Helper()
	server := testutil.StartRedis(t)
	return &shop{t, server, server.Client(t)}
}

// gate opens an instance of the service.
func (s *shop) gate(change ...func(*herdgate.Options)) *herdgate.Gate {
	s.Helper()
	options := herdgate.Options{Redis: s.server.Client(s.T), Namespace: "shop"}
	for _, c := range change {
		c(&options)
	}
	return openGate(s.T, options)
}

func openGate(t *testing.T, options herdgate.Options) *herdgate.Gate {
	t.Helper()
	gate, err := herdgate.Open(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = gate.Close(context.WithoutCancel(t.Context())) })
	return gate
}

func newCache[V any](t *testing.T, gate *herdgate.Gate, load herdgate.LoaderFunc[V], policy herdgate.Policy) *herdgate.Cache[V] {
	t.Helper()
	cache, err := herdgate.New(gate, "product", load, policy)
	if err != nil {
		t.Fatal(err)
	}
	return cache
}

// tool runs a command on the service's Redis and its cache "product".
func (s *shop) tool(command string, args ...string) answer {
	s.Helper()
	return tool(s.T, append([]string{command, "-redis", s.server.Addr(), "-namespace", "shop", "-cache", "product"}, args...)...)
}

// awaitRest waits until MinRebuildInterval has passed since the last load of key.
func (s *shop) awaitRest(key string) {
	s.Helper()
	testutil.Eventually(s.T, 10*time.Second, func() bool {
		return s.rdb.Exists(s.Context(), "shop:b:product:{"+key+"}").Val() == 0
	}, "nothing stands at the build key")
}

func (s *shop) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// golden compares what was said with a file, but for what differs from run to run.
func golden(t *testing.T, name, got string) {
	t.Helper()
	for _, vary := range []struct{ what, as string }{
		{`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} UTC`, "TIME"},
		{`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`, "TIME"},
		{`\d\d:\d\d:\d\d\.\d{3}`, "TIME"},
		{`127\.0\.0\.1:\d+`, "ADDRESS"},
		{`"nonce": \d+`, `"nonce": N`},
		{`"generation": \d+`, `"generation": N`},
		{`nonce \d+`, "nonce N"},
		{`\b[0-9a-f]{16,32}\b`, "HEX"},
		{`_ms": -?\d+`, `_ms": N`},
		{`\b(\d+(\.\d+)?(ms|µs|h|m|s))+\b`, "SPAN"},
	} {
		got = regexp.MustCompile(vary.what).ReplaceAllString(got, vary.as)
	}
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil || got != string(want) {
		t.Errorf("%v; got\n%s\nwant, by %s,\n%s", err, got, path, want)
	}
}

func TestACommandLineThatMakesNoSenseIsExplained(t *testing.T) {
	at := func(command string, rest ...string) []string {
		return append([]string{command, "-cache", "product"}, rest...)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "which command?"},
		{[]string{"frobnicate"}, `there is no command "frobnicate": want inspect, delete, expire, watch, top`},
		{at("inspect"), "inspect takes one key, not 0"},
		{at("inspect", "a", "b"), "inspect takes one key, not 2"},
		{at("delete"), "which keys are to be deleted?"},
		{at("expire"), "which keys are to be expired?"},
		{[]string{"delete", "42"}, "of which cache? Name it with -cache"},
		{[]string{"delete", "-cache", "a:b", "42"}, `-cache is "a:b": want letters, digits`},
		{at("delete", "-namespace", "", "42"), `-namespace is "": want letters, digits`},
		{at("delete", "-timeout", "0", "42"), "-timeout is 0s: want a positive duration"},
		{at("delete", "-min-rebuild-interval", "-1s", "42"), "-min-rebuild-interval is -1s: want a positive duration"},
		{at("delete", "-frobnicate", "42"), "flag provided but not defined: -frobnicate; `herdgate delete -h` lists the flags"},
		{at("delete", "42", "-json"), `"-json" stands after an argument: flags come first`},
		{at("inspect", "-redis", "localhost", "42"), `the Redis address "localhost" is not host:port, nor a URL`},
		{at("inspect", "-redis", "localhost:1,localhost:2", "42"), "several Redis addresses: want one, or -cluster"},
		{at("inspect", "-cluster", "-redis", "localhost:1,here", "42"), `the Redis address "here" is not host:port`},
		{at("inspect", "-redis", "http://localhost", "42"), "the Redis URL cannot be used: invalid URL scheme: http"},
		{at("inspect", "-redis", "redis://me:secret@local host/", "42"), "the Redis URL cannot be used: "},
		{at("inspect", "-cluster", "-redis", "redis://me:secret@local host/", "42"), "the Redis URL cannot be used: "},
		{[]string{"watch", "product"}, "watch takes no arguments: -cache NAME watches one cache"},
		{[]string{"top"}, "top takes one URL"},
		{[]string{"top", "127.0.0.1:6060"}, `"127.0.0.1:6060" is no URL like http://`},
		{[]string{"top", "-every", "0", "http://127.0.0.1:1"}, "want a positive duration"},
	} {
		a := tool(t, c.args...)
		a.expect(t, exitUsage, c.want)
		if a.out != "" && len(c.args) > 0 || strings.Contains(a.err, "secret") || len(c.args) > 0 && strings.Count(a.err, "\n") != 1 {
			t.Errorf("%q says %+v", c.args, a)
		}
	}
}

func TestHelpListsCommandsAndFlags(t *testing.T) {
	a := tool(t, "-h")
	a.expect(t, exitDone, "")
	for _, c := range commands() {
		if !strings.Contains(a.out, c.synopsis()) {
			t.Errorf("the usage lacks %s", c.name)
		}
		help := tool(t, c.name, "-h")
		help.expect(t, exitDone, "")
		if !strings.Contains(help.out, "-timeout") || !strings.Contains(help.out, c.about) {
			t.Errorf("%s -h says %s", c.name, help.out)
		}
	}
}

func TestAServerThatCannotBeUsedIsExplained(t *testing.T) {
	s := newShop(t)
	dead := testutil.StartRedis(t)
	dead.Kill()
	mute := testutil.NewProxy(t, s.server.Addr())
	mute.Freeze()
	t.Cleanup(mute.Thaw)
	locked := testutil.StartRedis(t)
	s.must(locked.Client(t).ConfigSet(t.Context(), "requirepass", "secret").Err())
	for want, flags := range map[string][]string{
		"no Redis at " + dead.Addr() + ": connect: connection refused":                {"-redis", dead.Addr()},
		"no Redis at 127.0.0.1:1: connect: connection refused":                        {"-cluster", "-redis", "127.0.0.1:1"},
		"the Redis at " + mute.Addr() + " does not answer within 200ms":               {"-redis", mute.Addr(), "-timeout", "200ms"},
		"the Redis at " + locked.Addr() + " says: NOAUTH":                             {"-redis", locked.Addr()},
		"the Redis at " + locked.Addr() + " says: WRONGPASS":                          {"-redis", "redis://:terces@" + locked.Addr()},
		"the Redis at " + s.server.Addr() + " is no Cluster: leave out -cluster":      {"-redis", s.server.Addr(), "-cluster"},
		"nothing is stored for key \"42\" of cache product in namespace herdgate (he": {"-redis", "redis://:secret@" + locked.Addr() + "/1"},
	} {
		for _, command := range []string{"inspect", "delete", "watch"} {
			if strings.HasPrefix(want, "nothing") && command != "inspect" {
				continue
			}
			args := append([]string{command, "-cache", "product"}, flags...)
			if command != "watch" {
				args = append(args, "42")
			}
			a := tool(t, args...)
			a.expect(t, exitFailed, want)
			if a.out != "" || strings.Count(a.err, "\n") != 1 || strings.Contains(a.err, "terces") {
				t.Errorf("%s: %+v", command, a)
			}
		}
	}
}

func TestWhatIsNoRedisIsCalledSo(t *testing.T) {
	l := notRedis(t)
	tool(t, "inspect", "-cache", "product", "-redis", l, "42").expect(t, exitFailed, "what answers at "+l+" is no Redis")
}

func TestTheAddressMayComeFromTheEnvironment(t *testing.T) {
	s := newShop(t)
	t.Setenv("HERDGATE_REDIS", "redis://"+s.server.Addr()+"/0")
	tool(t, "delete", "-cache", "product", "42").expect(t, exitDone, "")
	t.Setenv("HERDGATE_REDIS", "127.0.0.1:1")
	tool(t, "delete", "-cache", "product", "42").expect(t, exitFailed, "no Redis at 127.0.0.1:1")
	tool(t, "delete", "-cache", "product", "-redis", s.server.Addr(), "42").expect(t, exitDone, "")
}

func TestAClusterIsReachedThroughAnyNode(t *testing.T) {
	cluster := testutil.StartCluster(t)
	rdb := cluster.Client(t)
	gate := openGate(t, herdgate.Options{Redis: rdb, Namespace: "shop"})
	cache := newCache[product](t, gate, nil, herdgate.Policy{TTL: time.Hour})
	flags := []string{"-namespace", "shop", "-cache", "product"}
	moved := 0
	for _, key := range []string{"1", "2", "3", "4", "5"} {
		if err := cache.Set(t.Context(), key, product{ID: key}); err != nil {
			t.Fatal(err)
		}
		at := func(command string, more ...string) answer {
			return tool(t, append(append(append([]string{command, "-redis", cluster.Addrs()[0]}, flags...), more...), key)...)
		}
		if a := at("inspect"); a.code == exitFailed {
			a.expect(t, exitFailed, "is a node of a Cluster: add -cluster")
			moved++
		}
		at("inspect", "-cluster").expect(t, exitDone, "")
		at("delete", "-cluster").expect(t, exitDone, "")
		testutil.Eventually(t, 5*time.Second, func() bool {
			_, found, err := cache.Peek(t.Context(), key)
			return err == nil && !found
		}, "the service hears of the delete")
		at("inspect", "-cluster").expect(t, exitFailed, "nothing is stored for key")
	}
	if moved == 0 {
		t.Error("all five keys are on one node of three")
	}
}

// lines is what a program writes, line by line.
type lines struct {
	mu   sync.Mutex // protects text
	text []byte
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, p...)
	return len(p), nil
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text)
}

func (l *lines) await(t *testing.T, want string) {
	t.Helper()
	testutil.Eventually(t, 20*time.Second, func() bool { return strings.Contains(l.String(), want) }, want)
}

func TestTheProgramItself(t *testing.T) {
	s := newShop(t)
	binary := filepath.Join(t.TempDir(), "herdgate")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	start := func(args ...string) (*exec.Cmd, *lines, *lines) {
		cmd := exec.CommandContext(t.Context(), binary, args...)
		var out, errOut lines
		cmd.Stdout, cmd.Stderr = &out, &errOut
		s.must(cmd.Start())
		return cmd, &out, &errOut
	}
	code := func(cmd *exec.Cmd) int {
		if exit, ok := errors.AsType[*exec.ExitError](cmd.Wait()); ok {
			return exit.ExitCode()
		}
		return 0
	}
	at := []string{"-redis", s.server.Addr(), "-namespace", "shop", "-cache", "product"}

	watch, heard, notes := start(append([]string{"watch"}, at...)...)
	notes.await(t, "watching namespace shop on "+s.server.Addr()+"\n")

	cmd, out, errOut := start(append(append([]string{"delete"}, at...), "42")...)
	if c := code(cmd); c != exitDone || out.String() != "deleted product \"42\"; Redis had nothing stored for it\n" || errOut.String() != "" {
		t.Errorf("delete ends with %d, %q, %q", c, out, errOut)
	}
	heard.await(t, `delete   product "42"  by `)
	s.must(watch.Process.Signal(syscall.SIGINT))
	if c := code(watch); c != exitDone || strings.Count(heard.String(), "\n") != 1 {
		t.Errorf("watch ends with %d, %q, %q", c, heard, notes)
	}

	cmd, out, errOut = start(append(append([]string{"inspect"}, at...), "42")...)
	if c := code(cmd); c != exitFailed || out.String() != "" || !strings.HasPrefix(errOut.String(), "herdgate: nothing is stored for key \"42\"") {
		t.Errorf("inspect ends with %d, %q, %q", c, out, errOut)
	}
	cmd, out, errOut = start("inspect")
	if c := code(cmd); c != exitUsage || out.String() != "" || errOut.String() == "" {
		t.Errorf("without a key it ends with %d, %q, %q", c, out, errOut)
	}
	cmd, out, errOut = start("inspect", "-redis", "127.0.0.1:1", "-cache", "product", "42")
	if c := code(cmd); c != exitFailed || out.String() != "" || errOut.String() != "herdgate: no Redis at 127.0.0.1:1: connect: connection refused\n" {
		t.Errorf("without a server it ends with %d, %q, %q", c, out, errOut)
	}
}
