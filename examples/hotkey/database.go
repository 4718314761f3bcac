package main

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"modernc.org/sqlite"

	"github.com/herdgate/herdgate"
)

// products is the number of rows in the table.
const products = 10_000

// product is a row, and what both phases keep in Redis, as msgpack.
type product struct {
	ID         int64
	Name       string
	PriceCents int64
	LoadedAt   int64 // Unix time in nanoseconds at which its query returned
}

// database runs the one query of this program, and counts it.
type database struct {
	pool  *sql.DB
	query string
	load  time.Duration // what the query is made to take
	meter *meter
}

// The sleep is part of the query, as slowness is in a real one: it keeps the
// connection, and ends in the database, not in the caller.
const (
	sqliteQuery   = `SELECT id, name, price_cents, slow(?) FROM hotkey_products WHERE id = ?`
	postgresQuery = `SELECT id, name, price_cents, pg_sleep($1)::text FROM hotkey_products WHERE id = $2`
)

// postgresConnections is the sum of all pools: Postgres allows 100 by default.
const postgresConnections = 80

func isPostgres(target string) bool {
	return strings.HasPrefix(target, "postgres://") || strings.HasPrefix(target, "postgresql://")
}

// openDatabase opens the database of one instance, with a connection for each
// caller where the server allows it.
func openDatabase(j job, m *meter) (*database, error) {
	db := &database{load: j.Load, meter: m}
	connections := j.Callers
	var err error
	if isPostgres(j.DB) {
		connections = min(connections, max(1, postgresConnections/j.Instances))
		db.query = postgresQuery
		db.pool, err = sql.Open("pgx", j.DB)
	} else {
		db.query = sqliteQuery
		db.pool, err = openSQLite(j.DB, "ro")
	}
	if err != nil {
		return nil, err
	}
	db.pool.SetMaxOpenConns(connections)
	db.pool.SetMaxIdleConns(connections)
	return db, nil
}

// product runs the query. It is a loader.
func (db *database) product(ctx context.Context, id string) (product, error) {
	db.meter.query(id)
	var (
		p     product
		slept any
	)
	err := db.pool.QueryRowContext(ctx, db.query, db.load.Seconds(), id).Scan(&p.ID, &p.Name, &p.PriceCents, &slept)
	if errors.Is(err, sql.ErrNoRows) {
		return product{}, herdgate.ErrNotFound
	}
	p.LoadedAt = time.Now().UnixNano()
	return p, err
}

// prepare makes the table if it is not there.
func prepare(ctx context.Context, target string) error {
	var (
		pool *sql.DB
		err  error
	)
	if isPostgres(target) {
		pool, err = sql.Open("pgx", target)
	} else {
		pool, err = openSQLite(target, "rwc")
	}
	if err != nil {
		return err
	}
	defer func() { _ = pool.Close() }()
	if _, err := pool.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS hotkey_products (id BIGINT PRIMARY KEY, name TEXT NOT NULL, price_cents BIGINT NOT NULL)`); err != nil {
		return err
	}
	_, err = pool.ExecContext(ctx, fmt.Sprintf(`
		WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d)
		INSERT INTO hotkey_products (id, name, price_cents)
		SELECT i, 'Product ' || i, 100 + i %% 9900 FROM n WHERE true ON CONFLICT DO NOTHING`, products))
	return err
}

// sqliteFile opens connections to one SQLite file with a driver of its own, since
// a SQL function belongs to a driver.
type sqliteFile struct {
	driver *sqlite.Driver
	dsn    string
}

func openSQLite(file, mode string) (*sql.DB, error) {
	d := &sqlite.Driver{}
	if err := d.RegisterScalarFunction("slow", 1, slow); err != nil {
		return nil, err
	}
	dsn := "file:" + (&url.URL{Path: file}).EscapedPath() + "?mode=" + mode + "&_pragma=busy_timeout(5000)"
	return sql.OpenDB(sqliteFile{driver: d, dsn: dsn}), nil
}

// Connect implements driver.Connector.
func (f sqliteFile) Connect(context.Context) (driver.Conn, error) { return f.driver.Open(f.dsn) }

// Driver implements driver.Connector.
func (f sqliteFile) Driver() driver.Driver { return f.driver }

// slow is the SQL function slow(seconds).
func slow(_ *sqlite.FunctionContext, args []driver.Value) (driver.Value, error) {
	seconds, ok := args[0].(float64)
	if !ok {
		return nil, fmt.Errorf("slow(%v): want seconds", args[0])
	}
	time.Sleep(time.Duration(seconds * float64(time.Second)))
	return nil, nil
}
