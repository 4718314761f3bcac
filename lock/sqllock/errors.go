package sqllock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// kind is what an error of a driver means for a statement outside of a transaction.
type kind uint8

const (
	failed    kind = iota // nothing is known: the outcome either
	transient             // nothing was done, and the next try may do it: a deadlock, a serialization failure, a busy file
	waited                // nothing was done, because another transaction has locked the row
	duplicate             // nothing was done, because another session did it at the same time
	missing               // nothing was done, because there is no such table
	open                  // nothing was done, because the session would not commit it
)

// noTable is what SQLite says.
const noTable = "no such table"

// classify looks at what the drivers have in common, as no driver is imported here: PostgreSQL's have a method SQLState,
// SQLite's in Go a method Code. The number of a MySQL error is in a field, which only its own type could read, and at the
// beginning of its text.
func classify(err error) kind {
	if e := (interface{ SQLState() string })(nil); errors.As(err, &e) {
		switch e.SQLState() {
		case "40P01", "40001": // deadlock_detected, serialization_failure
			return transient
		case "55P03": // lock_not_available
			return waited
		case "23505", "42P07": // unique_violation, duplicate_table
			return duplicate
		case "42P01": // undefined_table
			return missing
		}
		return failed
	}
	if e := (interface{ Code() int })(nil); errors.As(err, &e) {
		switch e.Code() & 0xff { // the rest says more exactly what it was
		case 5, 6: // SQLITE_BUSY, SQLITE_LOCKED
			return transient
		}
		if strings.Contains(err.Error(), noTable) { // its code is that of many errors
			return missing
		}
		return failed
	}
	number, innermost := mysqlNumber(err)
	switch number {
	case 0:
	case 1213: // ER_LOCK_DEADLOCK
		return transient
	case 1205, 3572: // ER_LOCK_WAIT_TIMEOUT, ER_LOCK_NOWAIT
		return waited
	case 1146: // ER_NO_SUCH_TABLE
		return missing
	case 1048: // ER_BAD_NULL_ERROR
		return open
	default:
		return failed
	}
	if strings.Contains(innermost, noTable) {
		return missing
	}
	if strings.Contains(innermost, "database is locked") || strings.Contains(innermost, "database table is locked") {
		return transient // another driver of SQLite
	}
	return failed
}

// mysqlNumber is the number of an error of MySQL; 0: it is none, and innermost is the text of the error that it comes from.
func mysqlNumber(err error) (number int, innermost string) {
	for ; err != nil; err = errors.Unwrap(err) {
		innermost = err.Error()
		if _, noNumber := fmt.Sscanf(strings.ToLower(innermost), "error %d", &number); noNumber == nil {
			return number, innermost
		}
	}
	return 0, innermost
}

// retry calls f until it succeeds, or fails otherwise than as one of again, or tries are used up, or ctx ends.
func retry(ctx context.Context, tries int, f func() error, again ...kind) error {
	delay := time.Millisecond
	for {
		err := f()
		tries--
		if err == nil || tries == 0 || !slices.Contains(again, classify(err)) || !pause(ctx, delay/2+rand.N(delay)) {
			return err
		}
		delay = min(2*delay, 50*time.Millisecond)
	}
}

// pause waits for d; false if ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
