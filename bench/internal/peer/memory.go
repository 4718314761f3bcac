package peer

import (
	"context"
	"errors"
)

// memory makes a peer of a cache that lives in one process only: a reference for
// local hits. It never loads.
type memory struct {
	get   func(key string) (*Product, bool)
	set   func(key string, p *Product) bool
	del   func(key string)
	close func()
}

var (
	errMissing  = errors.New("the key is not in memory")
	errNotTaken = errors.New("the cache did not take the value")
)

func (m memory) Get(_ context.Context, key string) (*Product, error) {
	if p, ok := m.get(key); ok {
		return p, nil
	}
	return nil, errMissing
}

func (m memory) Set(_ context.Context, key string, p *Product) error {
	if !m.set(key, p) {
		return errNotTaken
	}
	return nil
}

func (m memory) Delete(_ context.Context, key string) error {
	m.del(key)
	return nil
}

func (m memory) Close(context.Context) error {
	m.close()
	return nil
}
