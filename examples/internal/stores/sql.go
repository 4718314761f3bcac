package stores

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	_ "modernc.org/sqlite"             // the driver "sqlite"
)

// The databases. MySQL is MariaDB as well.
const (
	SQLite   = "sqlite"
	Postgres = "postgres"
	MySQL    = "mysql"
)

// DB is a database whose statements are counted. They are written with ? for arguments, whatever the driver wants.
type DB struct {
	conn

	pool *sql.DB
	kind string
	sent atomic.Int64
}

// Conn is a DB or a transaction in one.
type Conn interface {
	// Exec runs a statement, and tells how many rows it found to change.
	Exec(ctx context.Context, query string, args ...any) (found int64, err error)
	// Row asks for one row.
	Row(ctx context.Context, query string, args ...any) *sql.Row
}

func openDB(kind, dsn string, connections int) (*DB, error) {
	db := &DB{kind: kind}
	var err error
	switch kind {
	case Postgres:
		db.pool, err = sql.Open("pgx", dsn)
	case MySQL:
		db.pool, err = openMySQL(dsn)
	default:
		db.pool, err = sql.Open("sqlite", sqliteURL(dsn))
	}
	if err != nil {
		return nil, err
	}
	db.pool.SetMaxOpenConns(connections)
	db.pool.SetMaxIdleConns(connections)
	db.conn = conn{on: db.pool, db: db}
	return db, nil
}

// connect opens all connections there will be, so that nobody's measured time has it in it.
func (db *DB) connect(ctx context.Context, connections int) error {
	var open []*sql.Conn
	defer func() {
		for _, c := range open {
			_ = c.Close() // goes back to the pool
		}
	}()
	for range connections {
		c, err := db.pool.Conn(ctx)
		if err != nil {
			return err
		}
		open = append(open, c)
	}
	return nil
}

// openMySQL lets a statement with arguments be one round trip, and lets it count the rows that it found, as the others
// do, instead of those whose values became different.
func openMySQL(dsn string) (*sql.DB, error) {
	config, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, err
	}
	config.InterpolateParams, config.ClientFoundRows = true, true
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(connector), nil
}

// sqliteURL asks for readers that do not wait for the one writer there can be, writers that wait for each other, and
// transactions that are writers from their BEGIN IMMEDIATE on: one that has read and then wants to write fails if
// another has written in between.
func sqliteURL(file string) string {
	options := "?_pragma=busy_timeout(60000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_txlock=immediate"
	return "file:" + (&url.URL{Path: file}).EscapedPath() + options
}

// ForUpdate ends a SELECT, in a transaction, whose row nobody else may change until the commit. SQLite has nothing of
// the kind: there a transaction excludes all other writers as it is.
func (db *DB) ForUpdate() string {
	if db.kind == SQLite {
		return ""
	}
	return " FOR UPDATE"
}

// InsertNew is an INSERT into table, of the columns and values that follow, that changes nothing, and says so by its
// count, if there is a row with that primary key.
func (db *DB) InsertNew(table, columnsAndValues string) string {
	if db.kind == MySQL {
		return "INSERT IGNORE INTO " + table + " " + columnsAndValues
	}
	return "INSERT INTO " + table + " " + columnsAndValues + " ON CONFLICT DO NOTHING"
}

// InTx runs f in a transaction: what it does takes effect as a whole if it returns nil, else not at all.
func (db *DB) InTx(ctx context.Context, f func(tx Conn) error) error {
	db.sent.Add(2) // BEGIN, and COMMIT or ROLLBACK
	tx, err := db.pool.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	if err := f(conn{on: tx, db: db}); err != nil {
		if rollback := tx.Rollback(); rollback != nil && !errors.Is(rollback, sql.ErrTxDone) {
			err = errors.Join(err, fmt.Errorf("roll back: %w", rollback))
		}
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// conn is what a pool and a transaction have in common.
type conn struct {
	on interface {
		ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
		QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	}
	db *DB
}

// Exec implements Conn.
func (c conn) Exec(ctx context.Context, query string, args ...any) (found int64, err error) {
	c.db.sent.Add(1)
	result, err := c.on.ExecContext(ctx, c.db.rebind(query), args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// Row implements Conn.
func (c conn) Row(ctx context.Context, query string, args ...any) *sql.Row {
	c.db.sent.Add(1)
	return c.on.QueryRowContext(ctx, c.db.rebind(query), args...)
}

// rebind writes $1, $2, … for each ? where the database is Postgres. There is no ? elsewhere in the examples' queries.
func (db *DB) rebind(query string) string {
	if db.kind != Postgres {
		return query
	}
	var b strings.Builder
	for i, part := range strings.Split(query, "?") {
		if i > 0 {
			b.WriteString("$" + strconv.Itoa(i))
		}
		b.WriteString(part)
	}
	return b.String()
}
