// Package herdgate_test is a file of the tests of the root: see package coretest.
package herdgate_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/herdgate/herdgate/lock"
	"github.com/herdgate/herdgate/lock/sqllock"
)

// openLocks opens the locks of a namespace, which has a table of its own, in a PostgreSQL.
func openLocks(source, namespace string) (backend lock.Backend, closeLocks func() error, err error) { //nolint:unused // the other tests of its package are those of the root
	db, err := sql.Open("pgx", source)
	if err != nil {
		return nil, nil, err
	}
	// All gates of all tests that run at a time share the 200 connections of a server.
	db.SetMaxOpenConns(3)
	db.SetMaxIdleConns(3)
	locks, err := sqllock.New(db, sqllock.Options{Dialect: sqllock.PostgreSQL, Table: "locks_" + strings.ToLower(namespace)})
	if err != nil {
		return nil, nil, errors.Join(err, db.Close())
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second) // openLocks is given none
	defer cancel()
	if err := locks.CreateTable(ctx); err != nil {
		return nil, nil, errors.Join(err, db.Close())
	}
	return locks, db.Close, nil
}
