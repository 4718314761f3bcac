package sqllock

import (
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"strings"
)

// fits returns an error if db has a driver that is known, and speaks another dialect. A driver that wraps one is not known.
func (d Dialect) fits(db *sql.DB) error {
	t := reflect.TypeOf(db.Driver())
	if t == nil {
		return nil
	}
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	pkg := t.PkgPath()
	spoken := d
	switch {
	case strings.HasPrefix(pkg, "github.com/jackc/pgx/"), pkg == "github.com/lib/pq":
		spoken = PostgreSQL
	case pkg == "github.com/go-sql-driver/mysql":
		spoken = MySQL
	case pkg == "modernc.org/sqlite", pkg == "github.com/mattn/go-sqlite3", pkg == "github.com/ncruces/go-sqlite3/driver":
		spoken = SQLite
	}
	if spoken != d {
		return fmt.Errorf("sqllock: Dialect is %v, but the driver of the database is %s: must be %v", d, pkg, spoken)
	}
	return nil
}

// isForeign tells whether an error comes from a database of another dialect than d.
func (d Dialect) isForeign(err error) bool {
	spoken := speaks(err)
	return spoken != 0 && spoken != d
}

// blame adds to an error that is foreign that d is not the dialect of the database.
func (d Dialect) blame(err error) error {
	if !d.isForeign(err) {
		return err
	}
	return fmt.Errorf("sqllock: Dialect is %v, but the database seems to be %v: must be the dialect of the database: %w", d, speaks(err), err)
}

// speaks is the dialect of the database that an error comes from, which has not understood a statement; 0 if the error
// does not tell.
func speaks(err error) Dialect {
	if e := (interface{ SQLState() string })(nil); errors.As(err, &e) {
		switch e.SQLState() {
		// syntax_error, and undefined function, table and object, which have other codes elsewhere
		case "42601", "42883", "42P01", "42704":
			return PostgreSQL
		}
		return 0
	}
	if e := (interface{ Code() int })(nil); errors.As(err, &e) {
		switch e.Code() {
		case 1, 257: // SQLITE_ERROR, SQLITE_ERROR_MISSING_COLLSEQ
			return SQLite
		}
		return 0
	}
	switch number, _ := mysqlNumber(err); number {
	case 1054, 1064, 1146, 1305: // ER_BAD_FIELD_ERROR, ER_PARSE_ERROR, ER_NO_SUCH_TABLE, ER_SP_DOES_NOT_EXIST
		return MySQL
	}
	return 0
}
