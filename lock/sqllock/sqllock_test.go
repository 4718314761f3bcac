package sqllock_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/herdgate/herdgate/internal/testutil"
	"github.com/herdgate/herdgate/lock"
	"github.com/herdgate/herdgate/lock/locktest"
	"github.com/herdgate/herdgate/lock/sqllock"
)

func TestMain(m *testing.M) {
	os.Exit(testutil.Main(m, map[string]testutil.Role{"holder": holder, "session": sessionHolder}))
}

// patience bounds what a test waits for.
const patience = 30 * time.Second

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// database is one that tests run on. Its server is nil for SQLite, which is a file.
type database struct {
	dialect sqllock.Dialect
	server  *testutil.Server
	driver  string
	source  func(addr string) string // of a server at addr, or behind it
}

func postgres(tb testing.TB) database {
	tb.Helper()
	return database{sqllock.PostgreSQL, testutil.StartPostgres(tb), "pgx", func(addr string) string {
		return "postgres://test@" + addr + "/postgres?sslmode=disable"
	}}
}

func mariaDB(tb testing.TB) database {
	tb.Helper()
	return database{sqllock.MySQL, testutil.StartMariaDB(tb), "mysql", func(addr string) string {
		return "root@tcp(" + addr + ")/test"
	}}
}

func sqlite(tb testing.TB) database {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "locks.db")
	return database{sqllock.SQLite, nil, "sqlite", func(string) string {
		return "file:" + path + "?_pragma=journal_mode(wal)&_pragma=busy_timeout(1000)&_pragma=synchronous(off)"
	}}
}

func (d database) open(tb testing.TB, more string) *sql.DB {
	tb.Helper()
	addr := ""
	if d.server != nil {
		addr = d.server.Addr()
	}
	return openSource(tb, d.driver, d.source(addr)+more)
}

func openSource(tb testing.TB, driver, source string) *sql.DB {
	tb.Helper()
	db, err := sql.Open(driver, source)
	must(tb, err)
	db.SetMaxIdleConns(20) // else each of many contenders opens a connection for each statement
	tb.Cleanup(func() { _ = db.Close() })
	return db
}

func (d database) backend(tb testing.TB, db *sql.DB) *sqllock.Backend {
	tb.Helper()
	backend, err := sqllock.New(db, sqllock.Options{Dialect: d.dialect})
	must(tb, err)
	return backend
}

func TestOnPostgreSQL(t *testing.T) { run(t, postgres(t)) }
func TestOnMariaDB(t *testing.T)    { run(t, mariaDB(t)) }
func TestOnSQLite(t *testing.T)     { run(t, sqlite(t)) }

// on is a test on a database.
type on struct {
	*testing.T
	d database
}

// run runs all tests that a database is for, on one server.
func run(t *testing.T, d database) {
	t.Helper()
	backend := d.backend(t, d.open(t, ""))
	must(t, backend.CreateTable(t.Context()))
	t.Run("conforms", func(t *testing.T) {
		locktest.Run(t, func(testing.TB) lock.Backend { return backend })
	})
	everywhere := map[string]func(on){
		"a table that is not there is named":                      on.noTable,
		"several make the table at a time":                        on.tablesAreMadeTogether,
		"a dialect that is not the database's is named":           on.wrongDialects,
		"a table of another name, in a schema too":                on.otherTables,
		"tokens go on rising when rows were pruned":               on.tokensRiseOverPrune,
		"what is held, or was of late, is not pruned":             on.pruneKeepsWhatIsNew,
		"many get a fresh lock one after the other":               on.firstInserts,
		"who waits for a connection is not told it is held":       on.poolIsUsedUp,
		"a holder that was killed leaves the lock after its TTL":  on.holderIsKilled,
		"a frozen holder knows it lost, and its writes are void":  on.holderIsFrozen,
		"a fence lets no lower token write":                       on.fenceRefusesLower,
		"a fence needs a token":                                   on.fenceNeedsAToken,
		"a guard without the lock says so":                        on.guardNeedsTheLock,
		"a guarded transaction sees what holders before it wrote": on.guardRefusesOldReads,
		"a guarded transaction commits only as the holder":        on.guardExcludesTheNext,
		"a name that is too long for the table is one of its own": on.longNames,
	}
	servers := map[string]func(on){
		"an expired lock is held while its holder's transaction is guarded": on.guardedIsHeld,
		"a request whose client has gone is not granted later":              on.lateIsVoid,
		"a renewal whose client has gone does nothing later":                on.lateRenewalIsVoid,
		"a deadlock of those who ask for a fresh lock is no error":          on.deadlocks,
		"a fence writes a row that was just inserted":                       on.fenceWritesALateRow,
		"isolation levels of sessions do not matter":                        on.isolationLevels,
		"locks of rows last as long as their transactions":                  on.rowLocks,
		"a session lock excludes others":                                    on.sessionsExclude,
		"those who wait for a session lock get it":                          on.sessionsWait,
		"a wait for a session lock that ends leaves nothing behind":         on.sessionsGiveUp,
		"a session that ends is told, and lost with what it did":            on.sessionsAreLost,
		"a session lock of a killed process is free":                        on.sessionsOfTheKilled,
		"session locks with odd names":                                      on.sessionNames,
		// These harm the server.
		"a holder that is cut off knows before others get the lock": on.holderIsCutOff,
		"a request whose reply was lost leaves no lock":             on.replyIsLost,
		"a server that is frozen is an error in time":               on.serverIsFrozen,
		"tokens rise, and locks stay, over a restart":               on.serverRestarts,
	}
	if d.dialect == sqllock.MySQL {
		everywhere["a session that commits nothing gets no lock"] = on.openSession
	}
	if d.server != nil {
		maps.Copy(everywhere, servers)
	}
	for name, test := range everywhere {
		t.Run(name, func(t *testing.T) { test(on{t, d}) })
	}
}

// engine makes an engine over a backend of db, and a name that no other test uses.
func engine(tb testing.TB, d database, db *sql.DB, opts lock.Options) (made *lock.Engine, name string) {
	tb.Helper()
	if opts.CallTimeout == 0 {
		opts.CallTimeout = patience
	}
	made, err := lock.New(d.backend(tb, db), opts)
	must(tb, err)
	tb.Cleanup(func() { must(tb, made.Close(context.WithoutCancel(tb.Context()))) })
	return made, tb.Name() + rand.Text()
}

func begin(tb testing.TB, db *sql.DB) *sql.Tx {
	tb.Helper()
	tx, err := db.BeginTx(tb.Context(), nil)
	must(tb, err)
	tb.Cleanup(func() { _ = tx.Rollback() }) // unless it has ended
	return tx
}

func exec(tb testing.TB, on interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
}, query string,
) {
	tb.Helper()
	if _, err := on.ExecContext(tb.Context(), query); err != nil {
		tb.Fatalf("%s: %v", query, err)
	}
}

// wants fails the test unless err matches all of targets.
func wants(tb testing.TB, err error, targets ...error) {
	tb.Helper()
	for _, target := range targets {
		if !errors.Is(err, target) {
			tb.Fatalf("got error %v, want one that matches %v", err, target)
		}
	}
}

func TestNewNamesWhatIsWrong(t *testing.T) {
	db := sqlite(t).open(t, "")
	mysql := openSource(t, "mysql", "root@tcp(127.0.0.1:1)/test") // nothing is sent there
	for want, got := range map[string]func() error{
		"database is nil": func() error { _, err := sqllock.New(nil, sqllock.Options{Dialect: sqllock.SQLite}); return err },
		"Dialect is 0":    func() error { _, err := sqllock.New(db, sqllock.Options{}); return err },
		"Dialect is 9":    func() error { _, err := sqllock.New(db, sqllock.Options{Dialect: 9}); return err },
		`Table is "a;b"`: func() error {
			_, err := sqllock.New(db, sqllock.Options{Dialect: sqllock.SQLite, Table: "a;b"})
			return err
		},
		`Table is "C"`: func() error {
			_, err := sqllock.New(db, sqllock.Options{Dialect: sqllock.SQLite, Table: "a.C"})
			return err
		},
		`Table is ""`: func() error {
			_, err := sqllock.NewFence(sqllock.FenceOptions{Dialect: sqllock.MySQL, Key: "id"})
			return err
		},
		`Key is "1"`: func() error {
			_, err := sqllock.NewFence(sqllock.FenceOptions{Dialect: sqllock.MySQL, Table: "t", Key: "1"})
			return err
		},
		"CheckEvery is -1ns": func() error {
			_, err := sqllock.NewSessions(mysql, sqllock.SessionOptions{Dialect: sqllock.MySQL, CheckEvery: -1})
			return err
		},
		"unsupported": func() error {
			_, err := sqllock.NewSessions(db, sqllock.SessionOptions{Dialect: sqllock.SQLite})
			return err
		},
		"idle is 1s": func() error {
			backend, err := sqllock.New(db, sqllock.Options{Dialect: sqllock.SQLite})
			must(t, err)
			_, err = backend.Prune(t.Context(), time.Second)
			return err
		},
	} {
		if err := got(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want one with %q", err, want)
		}
	}
}
