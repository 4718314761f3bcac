package herdgate_test

import (
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/herdgate/herdgate"

// neverLinked is what no package of the library may bring into a user's binary,
// by import path or its beginning.
var neverLinked = map[string]string{
	"testing":                       "it registers flags and is for tests",
	"github.com/alicebob/miniredis": "it is for tests",
	"go.uber.org/goleak":            "it is for tests",
	"github.com/stretchr/testify":   "it is for tests",
	module + "/internal/testutil":   "it is for tests",
	"go.opentelemetry.io":           "it lives in extra/otel",
	"github.com/prometheus":         "it lives in extra/prom",
	"go.etcd.io":                    "it lives in lock/etcdlock",
	"github.com/go-zookeeper":       "it lives in lock/zklock",
	"github.com/jackc/pgx":          "it is for the tests of lock/sqllock",
	"github.com/go-sql-driver":      "it is for the tests of lock/sqllock",
	"modernc.org/sqlite":            "it is for the tests of lock/sqllock",
}

// testSupport are the packages made for tests, ours or our users'.
var testSupport = []string{module + "/internal/testutil", module + "/lock/locktest", module + "/herdgatetest"}

// directRequires are the modules that go.mod may ask for itself.
var directRequires = map[string]string{
	"github.com/redis/go-redis/v9":      "the Redis client users hand to Open",
	"golang.org/x/sync":                 "semaphores",
	"github.com/dgraph-io/ristretto/v2": "admission and eviction of the local tier",
	"github.com/vmihailenco/msgpack/v5": "the default codec",
	"github.com/puzpuzpuz/xsync/v4":     "the index of the local tier and the counters: a look-up takes 11 ns, 29 with sync.Map",
	"github.com/cespare/xxhash/v2":      "the hash in the stored header: 4 ns a key, 39 with FNV of the standard library",
	"github.com/klauspost/compress":     "compressed entries",
	"github.com/alicebob/miniredis/v2":  "tests",
	"go.uber.org/goleak":                "tests",
}

// pkg is what the go command says of one package of this module.
type pkg struct {
	ImportPath string
	Imports    []string // of its files that are not tests
	Deps       []string // Imports, and theirs, and so on
}

// packages lists the packages of this module.
func packages(t *testing.T) []pkg {
	t.Helper()
	// -e: what does not build is not this test's to report.
	out := goCommand(t, "list", "-e", "-json=ImportPath,Imports,Deps", "./...")
	var all []pkg
	for dec := json.NewDecoder(strings.NewReader(out)); dec.More(); {
		var p pkg
		if err := dec.Decode(&p); err != nil {
			t.Fatalf("reading what go list said: %v", err)
		}
		all = append(all, p)
	}
	return all
}

func goCommand(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	var errOut strings.Builder
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, errOut.String())
	}
	return string(out)
}

// within reports whether an import path is root or lies below it.
func within(path, root string) bool { return path == root || strings.HasPrefix(path, root+"/") }

func isStd(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

func TestNoPackageLinksTestCodeOrHeavyDependencies(t *testing.T) {
	for _, p := range packages(t) {
		if slices.Contains(testSupport, p.ImportPath) {
			continue
		}
		for _, dep := range p.Deps {
			for bad, why := range neverLinked {
				if within(dep, bad) {
					t.Errorf("%s links %s: %s", p.ImportPath, dep, why)
				}
			}
		}
	}
}

func TestNothingBelowTheRootImportsIt(t *testing.T) {
	for _, p := range packages(t) {
		if slices.Contains(p.Deps, module) && p.ImportPath != module+"/herdgatetest" && p.ImportPath != module+"/debug" {
			t.Errorf("%s imports the root, directly or not: imports point from the root to the leaves", p.ImportPath)
		}
	}
}

func TestPublicLeavesImportNothingElseOfTheModule(t *testing.T) {
	for _, p := range packages(t) {
		path := strings.TrimPrefix(p.ImportPath, module+"/")
		allowed := module + "/lock" // for its backends and its suite
		switch {
		case path == "lock" || path == "singleflight" || path == "codec":
			allowed = ""
		case !within(path, "lock"):
			continue
		}
		for _, imp := range p.Imports {
			if within(imp, module) && imp != allowed {
				t.Errorf("%s imports %s: a leaf that others use alone brings nothing else along", p.ImportPath, imp)
			}
		}
	}
}

func TestTheLockContractNeedsOnlyTheStandardLibrary(t *testing.T) {
	for _, p := range packages(t) {
		if p.ImportPath != module+"/lock" {
			continue
		}
		for _, dep := range p.Deps {
			if !isStd(dep) {
				t.Errorf("%s links %s: a backend of someone else's must not pay for it", p.ImportPath, dep)
			}
		}
	}
}

func TestGoModAsksForNothingUnplanned(t *testing.T) {
	var mod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
		Replace   []struct{}
		Toolchain string
	}
	if err := json.Unmarshal([]byte(goCommand(t, "mod", "edit", "-json")), &mod); err != nil {
		t.Fatalf("reading go.mod: %v", err)
	}
	for _, r := range mod.Require {
		if directRequires[r.Path] == "" && !r.Indirect {
			t.Errorf("go.mod requires %s, which is not in the list of this test: every user would pay for it", r.Path)
		}
	}
	if len(mod.Replace) > 0 {
		t.Error("go.mod of the root has a replace, which users' builds ignore")
	}
	if mod.Toolchain != "" {
		t.Errorf("go.mod asks for toolchain %s; the go line is enough", mod.Toolchain)
	}
}
