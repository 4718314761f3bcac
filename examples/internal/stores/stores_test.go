package stores

import (
	"errors"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestArgumentsAreNumberedForPostgresAlone(t *testing.T) {
	const query = `UPDATE t SET a = ? WHERE b = ? AND c < ?`
	if got := (&DB{kind: Postgres}).rebind(query); got != `UPDATE t SET a = $1 WHERE b = $2 AND c < $3` {
		t.Errorf("Postgres gets %s", got)
	}
	if got := (&DB{kind: SQLite}).rebind(query); got != query {
		t.Errorf("SQLite gets %s", got)
	}
}

func TestATransactionThatFailsChangesNothingAndIsCounted(t *testing.T) {
	s, err := new(Config).Open(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx := t.Context()
	if _, err := s.DB.Exec(ctx, `CREATE TABLE t (id BIGINT PRIMARY KEY)`); err != nil {
		t.Fatal(err)
	}
	before, _ := s.Sent()
	insert := s.DB.InsertNew("t", "(id) VALUES (?)")
	failed := errors.New("failed")
	for _, end := range []error{failed, nil} {
		err := s.DB.InTx(ctx, func(tx Conn) error {
			for _, want := range []int64{1, 0} { // the second finds the first
				if n, err := tx.Exec(ctx, insert, 7); err != nil || n != want {
					t.Errorf("an insert of what is new %d times inserts %d, %v", want, n, err)
				}
			}
			return end
		})
		if !errors.Is(err, end) {
			t.Errorf("the transaction gives %v, want %v", err, end)
		}
		var rows int
		if err := s.DB.Row(ctx, `SELECT COUNT(*) FROM t`).Scan(&rows); err != nil || (rows == 1) != (end == nil) {
			t.Errorf("there are %d rows after it ended with %v; %v", rows, end, err)
		}
	}
	if now, _ := s.Sent(); now-before != 2*(4+1) {
		t.Errorf("%d statements were sent, want 10: two transactions of 4, each with a count after it", now-before)
	}
}

func TestCommandsAreCountedAndConnectingIsNot(t *testing.T) {
	s, err := new(Config).Open(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Redis.Set(t.Context(), "k", 1, 0).Err(); err != nil {
		t.Fatal(err)
	}
	pipe := s.Redis.Pipeline()
	pipe.Get(t.Context(), "k")
	pipe.Get(t.Context(), "k")
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, commands := s.Sent(); commands != 3 {
		t.Errorf("%d commands were sent, want 3", commands)
	}
}
