package sqllock_test

import (
	"database/sql"
	"os"
	"path/filepath"
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
	os.Exit(testutil.Main(m, nil))
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

func run(t *testing.T, d database) {
	t.Helper()
	backend := d.backend(t, d.open(t, ""))
	must(t, backend.CreateTable(t.Context()))
	t.Run("conforms", func(t *testing.T) {
		locktest.Run(t, func(testing.TB) lock.Backend { return backend })
	})
}
