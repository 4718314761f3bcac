// Package storestest has the stores that the examples of locks are tested on.
package storestest

import (
	"testing"

	"github.com/herdgate/herdgate/internal/testutil"
)

// Everywhere are the stores to test on: each starts its servers, and returns the flags for them.
func Everywhere() map[string]func(t *testing.T) []string {
	return map[string]func(t *testing.T) []string{
		"embedded": func(*testing.T) []string { return nil },
		"redis": func(t *testing.T) []string {
			t.Helper()
			return []string{"-redis", testutil.StartRedis(t).Addr()}
		},
		"redis and PostgreSQL": func(t *testing.T) []string {
			t.Helper()
			dsn := "postgres://test@" + testutil.StartPostgres(t).Addr() + "/postgres?sslmode=disable"
			return []string{"-redis", testutil.StartRedis(t).Addr(), "-db", "postgres", "-dsn", dsn}
		},
		"redis and MariaDB": func(t *testing.T) []string {
			t.Helper()
			dsn := "root@tcp(" + testutil.StartMariaDB(t).Addr() + ")/test"
			return []string{"-redis", testutil.StartRedis(t).Addr(), "-db", "mysql", "-dsn", dsn}
		},
	}
}
