package sqllock

import (
	"errors"
	"fmt"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
)

func TestErrorsOfDriversAreKnownByWhatTheyHaveInCommon(t *testing.T) {
	for _, test := range []struct {
		err  error
		want kind
	}{
		{&pgconn.PgError{Code: "40P01"}, transient},
		{&pgconn.PgError{Code: "40001"}, transient},
		{&pgconn.PgError{Code: "55P03"}, waited},
		{&pgconn.PgError{Code: "23505"}, duplicate},
		{&pgconn.PgError{Code: "42P01"}, missing},
		{&pgconn.PgError{Code: "42601", Message: "Error 1213"}, failed},
		{&mysql.MySQLError{Number: 1213, SQLState: [5]byte([]byte("40001")), Message: "Deadlock found"}, transient},
		{&mysql.MySQLError{Number: 1213}, transient},
		{&mysql.MySQLError{Number: 1205}, waited},
		{&mysql.MySQLError{Number: 3572}, waited},
		{&mysql.MySQLError{Number: 1146}, missing},
		{&mysql.MySQLError{Number: 1048}, open},
		{&mysql.MySQLError{Number: 1064, Message: "database is locked"}, failed},
		{errors.New("database is locked"), transient},
		{errors.New("no such table: herdgate_locks"), missing},
		{errors.New("no route to host"), failed},
	} {
		for _, err := range []error{test.err, fmt.Errorf("traced: %w", test.err)} {
			if got := classify(err); got != test.want {
				t.Errorf("%v is of kind %d, want %d", err, got, test.want)
			}
		}
	}
}

func TestAnErrorOfAnotherDatabaseThanTheDialectsIsKnownAsThat(t *testing.T) {
	for _, test := range []struct {
		err  error
		want Dialect
	}{
		{&pgconn.PgError{Code: "42601"}, PostgreSQL},
		{&pgconn.PgError{Code: "42P01"}, PostgreSQL},
		{&pgconn.PgError{Code: "57P01"}, 0},
		{&mysql.MySQLError{Number: 1064}, MySQL},
		{&mysql.MySQLError{Number: 1213}, 0},
		{coded(1), SQLite},
		{coded(404), 0},
		{errors.New("no route to host"), 0},
	} {
		err := fmt.Errorf("traced: %w", test.err)
		if got := speaks(err); got != test.want {
			t.Errorf("%v is of %v, want %v", err, got, test.want)
		}
		if got, want := PostgreSQL.isForeign(err), test.want == MySQL || test.want == SQLite; got != want {
			t.Errorf("%v is foreign to PostgreSQL: %t, want %t", err, got, want)
		}
		if blamed := PostgreSQL.blame(err); !errors.Is(blamed, test.err) {
			t.Errorf("%v hides %v", blamed, err)
		}
	}
}

// coded is an error with a method that SQLite's have, and others.
type coded int

func (coded) Error() string { return "failed" }

func (c coded) Code() int { return int(c) }
