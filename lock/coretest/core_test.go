package coretest

import (
	"database/sql"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	_ "github.com/herdgate/herdgate" // go.mod must ask for what its tests need
	"github.com/herdgate/herdgate/internal/testutil"
)

func TestTheCacheWithEtcdAsItsLocker(t *testing.T) {
	addr := testutil.StartEtcd(t, 1)[0].Addr()
	runCore(t, "etcd", addr)

	client, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	resp, err := client.Get(t.Context(), "any")
	if err != nil {
		t.Fatal(err)
	}
	if n := resp.Header.Revision; n < 1000 {
		t.Errorf("etcd has seen %d writes: the tests went on without it", n)
	}
}

func TestTheCacheWithPostgreSQLAsItsLocker(t *testing.T) {
	source := "postgres://test@" + testutil.StartPostgres(t).Addr() + "/postgres?sslmode=disable"
	runCore(t, "sql", source)

	db, err := sql.Open("pgx", source)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	var n int
	err = db.QueryRowContext(t.Context(), "SELECT COALESCE(SUM(n_tup_ins + n_tup_upd), 0) FROM pg_stat_user_tables").Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	if n < 1000 {
		t.Errorf("PostgreSQL has seen %d writes: the tests went on without it", n)
	}
}

// runCore runs the tests of the root that open gates in real time with the locks at addr,
// as the file in the directory dir opens them. The race detector has seen these tests in the
// root, with lockers as well.
func runCore(t *testing.T, dir, addr string) {
	t.Helper()
	root := absolute(t, "../..")
	overlay, err := json.Marshal(map[string]map[string]string{
		"Replace": {filepath.Join(root, "locks_test.go"): absolute(t, filepath.Join(dir, "locks_test.go"))},
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "overlay.json")
	if err := os.WriteFile(file, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"test", "-count=1", "-timeout=20m", "-overlay=" + file, "-run=^(" + strings.Join(gateTests(t, root), "|") + ")$"}
	cmd := exec.CommandContext(t.Context(), "go", append(args, "github.com/herdgate/herdgate")...)
	cmd.Env = append(os.Environ(), "HERDGATE_TEST_LOCKS="+addr)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// gateTests are the tests of the root that open their gates by the helpers that give them
// a locker.
func gateTests(t *testing.T, root string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	function := regexp.MustCompile(`(?ms)^func (Test\w+)\(.*?^}`)
	helper := regexp.MustCompile(`\b(everywhere|startFleet|newFleet)\(`)
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range function.FindAllSubmatch(source, -1) {
			if helper.Match(f[0]) {
				names = append(names, string(f[1]))
			}
		}
	}
	if len(names) < 50 {
		t.Fatalf("found only %q", names)
	}
	return names
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}
