package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/herdgate/herdgate/examples/internal/stores"
	"github.com/herdgate/herdgate/examples/internal/stores/storestest"
	"github.com/herdgate/herdgate/lock"
	"github.com/herdgate/herdgate/lock/memlock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestNothingOversellsButNothing(t *testing.T) {
	for name, servers := range storestest.Everywhere() {
		t.Run(name, func(t *testing.T) {
			var stdout bytes.Buffer
			args := append(servers(t), "-json", "-items", "20", "-buyers", "15", "-tries", "3")
			if err := run(t.Context(), args, &stdout, t.Output()); err != nil {
				t.Fatal(err)
			}
			t.Logf("%s", stdout.Bytes())
			checkShape(t, stdout.Bytes())
			var r report
			if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
				t.Fatal(err)
			}
			for _, m := range r.Ways {
				switch {
				case m.Name == "none" && (m.Oversold == 0 || m.Sold != 20+m.Oversold):
					t.Errorf("without protection %d are sold, and oversold %d", m.Sold, m.Oversold)
				case m.Name != "none" && (m.Sold != 20 || m.Oversold != 0):
					t.Errorf("%s sells %d, and oversells %d", m.Name, m.Sold, m.Oversold)
				case m.OrdersPerSecond <= 0:
					t.Errorf("%s has a throughput of %v", m.Name, m.OrdersPerSecond)
				}
			}
		})
	}
}

// checkShape holds the names that readers of the JSON rely on.
func checkShape(t *testing.T, out []byte) {
	t.Helper()
	objects := json.NewDecoder(bytes.NewReader(out))
	var object struct {
		Ways []map[string]any `json:"ways"`
	}
	if err := objects.Decode(&object); err != nil {
		t.Fatal(err)
	}
	if _, err := objects.Token(); !errors.Is(err, io.EOF) {
		t.Errorf("there is more than one object on standard output: %v", err)
	}
	var names []string
	for _, w := range object.Ways {
		if got := slices.Sorted(maps.Keys(w)); !slices.Equal(got, []string{"name", "orders_s", "oversold", "sold"}) {
			t.Errorf("a way has %v", got)
		}
		names = append(names, w["name"].(string))
	}
	if want := []string{"none", "lock", "for-update", "version", "atomic", "lua", "fence"}; !slices.Equal(names, want) {
		t.Errorf("the ways are %v, want %v", names, want)
	}
}

func TestALateWriteIsRefusedByTheFenceAlone(t *testing.T) {
	world := openWorld(t)
	for _, w := range ways() {
		if w.late == nil {
			continue
		}
		f, err := freeze(t.Context(), world, w)
		if err != nil {
			t.Fatalf("%s: %v", w.name, err)
		}
		switch {
		case f.name == "lock" && (f.write != nil || f.sold <= frozenItems):
			t.Errorf("with the lock alone the late write gives %v, and %d are sold: this shows nothing", f.write, f.sold)
		case f.name == "fence" && (!errors.Is(f.write, errRefused) || f.sold != frozenItems):
			t.Errorf("with the fence the late write gives %v, and %d are sold", f.write, f.sold)
		}
	}
}

// A former holder may wake up after its successor has read the stock, and before the successor writes.
func TestTheFenceIsRaisedBeforeTheStockIsRead(t *testing.T) {
	world := openWorld(t)
	err := open(t.Context(), world, 2, time.Millisecond, func(s *shop) error {
		former, err := s.locks.TryLock(t.Context(), s.name)
		if err != nil {
			return err
		}
		read, goOn, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		succeed := func() error {
			successor, err := s.locks.Lock(t.Context(), s.name)
			if err != nil {
				close(read)
				return err
			}
			its := *s
			its.buying = func(context.Context) error { close(read); <-goOn; return nil }
			return errors.Join(its.fenced(t.Context(), successor, order{buyer: 2}), successor.Unlock(t.Context()))
		}
		stalled := *s
		stalled.buying = func(ctx context.Context) error {
			if err := former.Unlock(ctx); err != nil { // as its end would
				return err
			}
			go func() { done <- succeed() }()
			<-read
			return nil
		}
		if err := stalled.fenced(t.Context(), former, order{buyer: 1}); !errors.Is(err, errRefused) {
			t.Errorf("the former holder's write gives %v", err)
		}
		close(goOn)
		if err := <-done; err != nil {
			t.Errorf("the successor's write gives %v", err)
		}
		stalled.buying = func(context.Context) error { t.Error("an order is handled in vain"); return nil }
		if err := stalled.fenced(t.Context(), former, order{buyer: 3}); !errors.Is(err, errRefused) {
			t.Errorf("a former holder that comes later gets %v", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// release is a store of locks that answers each release with err.
type release struct {
	*memlock.Backend
	err error
}

func (r release) Release(context.Context, lock.Claim) error { return r.err }

func TestAnOrderStandsIfItsUnlockGetsNoAnswerButNotIfTheLockWasLost(t *testing.T) {
	noAnswer := errors.New("no answer")
	for answer, want := range map[error]error{noAnswer: nil, lock.ErrNotHeld: lock.ErrNotHeld} {
		locks, err := lock.New(release{memlock.New(), answer}, lock.Options{CallTimeout: 10 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		s := &shop{locks: locks, name: "item"}
		err = s.holding(t.Context(), order{}, func(context.Context, *lock.Lease, order) error { return nil })
		if !errors.Is(err, want) {
			t.Errorf("the release is answered by %q: got %v, want %v", answer, err, want)
		}
	}
}

func TestAnItemThatTheDatabaseDidNotSellIsPutBack(t *testing.T) {
	world := openWorld(t)
	err := open(t.Context(), world, 1, time.Millisecond, func(s *shop) error {
		there := order{buyer: 1}
		if _, err := s.db.Exec(t.Context(), `INSERT INTO flashsale_orders (sale, buyer, try) VALUES (?, ?, ?)`, s.sale, there.buyer, there.try); err != nil {
			return err
		}
		if err := s.lua(t.Context(), there); err == nil || errors.Is(err, errSoldOut) {
			t.Errorf("writing an order that is there gives %v: this shows nothing", err)
		}
		if err := s.lua(t.Context(), order{buyer: 2}); err != nil {
			t.Errorf("the item was not put back: %v", err)
		}
		if err := s.lua(t.Context(), order{buyer: 3}); !errors.Is(err, errSoldOut) {
			t.Errorf("the second of one item gives %v", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestAnItemIsTakenAndPutBackOnceHoweverOftenItIsAskedFor(t *testing.T) {
	world := openWorld(t)
	err := open(t.Context(), world, 5, time.Millisecond, func(s *shop) error {
		left := func() string { return s.rdb.Get(t.Context(), s.left).Val() }
		for range 2 {
			taken, err := redis.NewScript(takeSource).Run(t.Context(), s.rdb, []string{s.left, s.taken}, "1/1").Bool()
			if err != nil || !taken || left() != "4" {
				t.Errorf("taking gives %v, %v, and leaves %s of 5", taken, err, left())
			}
		}
		for range 2 {
			if err := s.putBack(t.Context(), order{1, 1}); err != nil || left() != "5" {
				t.Errorf("putting it back gives %v, and leaves %s of 5", err, left())
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestTheTableSaysWhatBecameOfTheFrozenHolder(t *testing.T) {
	var stdout bytes.Buffer
	file := filepath.Join(t.TempDir(), "with space?.db")
	if err := run(t.Context(), []string{"-items", "2", "-buyers", "3", "-tries", "1", "-pause", "1ms", "-dsn", file}, &stdout, t.Output()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"for-update", "lock: its late write is accepted, and 6 of 3 are sold", "fence: its late write is refused, and 3 of 3 are sold"} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("the table does not say %q:\n%s", want, stdout.String())
		}
	}
	checkEmpty(t, file)
}

// checkEmpty looks whether a run has removed what it wrote.
func checkEmpty(t *testing.T, file string) {
	t.Helper()
	world, err := (&stores.Config{DSN: file}).Open(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer world.Close()
	for _, table := range []string{"flashsale_stock", "flashsale_orders"} {
		var rows int
		if err := world.DB.Row(t.Context(), `SELECT COUNT(*) FROM `+table).Scan(&rows); err != nil || rows > 0 {
			t.Errorf("%s has %d rows left, %v", table, rows, err)
		}
	}
}

func TestAFlagThatCannotBeUsedIsNamedWithWhatWouldBeRight(t *testing.T) {
	for _, test := range []struct{ args, fault string }{
		{"-items=0", "-items is 0, want a number from 1 to 10000"},
		{"-buyers=1", "-buyers is 1, want a number from 2 to 1000"},
		{"-tries=0", "-tries is 0, want a number from 1 to 1000"},
		{"-tries=2", "-tries is 2, want more than 100 of them by the 50 buyers together"},
		{"-pause=0s", "-pause is 0s, want a time from 1ms to 1s"},
		{"-redis=localhost", `-redis is "localhost", want host:port`},
		{"-db=oracle", `-db is "oracle", want sqlite, postgres or mysql`},
		{"-db=postgres", "-dsn is empty, want the address of the postgres"},
		{"-dsn=postgres://u:secret@h/d", "-dsn is no plain file name, want -db postgres"},
		{"now", `unexpected argument "now"`},
	} {
		_, err := parse(strings.Fields(test.args), io.Discard)
		if err == nil || !strings.Contains(err.Error(), test.fault) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want %q", test.args, err, test.fault)
		}
	}
}

func TestAServerThatIsNotThereIsNamed(t *testing.T) {
	for _, test := range []struct{ args, fault string }{
		{"-redis=127.0.0.1:1", "-redis 127.0.0.1:1: "},
		{"-dsn=/no/such/file.db", "-dsn: "},
		{"-db=mysql -dsn=nonsense", "-dsn: "},
	} {
		err := run(t.Context(), strings.Fields(test.args), io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), test.fault) {
			t.Errorf("%s: %v, want %q", test.args, err, test.fault)
		}
	}
}

func openWorld(t *testing.T) *stores.Stores {
	t.Helper()
	world, err := new(stores.Config).Open(t.Context(), 5)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(world.Close)
	if err := makeTables(t.Context(), world.DB); err != nil {
		t.Fatal(err)
	}
	return world
}
