package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/herdgate/herdgate"
)

// Product is a row, and what is cached.
type Product struct {
	ID         int64
	Name       string
	PriceCents int64
}

type service struct {
	db       *sql.DB
	products *herdgate.Cache[Product]
}

func newService(gate *herdgate.Gate, db *sql.DB) (*service, error) {
	s := &service{db: db}
	var err error
	s.products, err = herdgate.New(gate, "product", s.load, herdgate.Policy{TTL: time.Minute, Stale: 10 * time.Minute})
	return s, err
}

// load is called by one process of the fleet at a time for each key.
func (s *service) load(ctx context.Context, id string) (Product, error) {
	var p Product
	err := s.db.QueryRowContext(ctx, `SELECT id, name, price_cents FROM products WHERE id = ?`, id).Scan(&p.ID, &p.Name, &p.PriceCents)
	if errors.Is(err, sql.ErrNoRows) {
		return Product{}, fmt.Errorf("product %s: %w", id, herdgate.ErrNotFound) // remembered, too
	}
	return p, err
}

// get answers GET /products/{id}.
func (s *service) get(w http.ResponseWriter, r *http.Request) {
	p, err := s.products.Get(r.Context(), r.PathValue("id"))
	switch {
	case errors.Is(err, herdgate.ErrNotFound):
		http.Error(w, "no such product", http.StatusNotFound)
	case err != nil:
		http.Error(w, "try again later", http.StatusServiceUnavailable)
	default:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(p) // a client that has gone needs no answer
	}
}

// rename answers PUT /products/{id}/name: first the source, then the cache. The
// source has changed, so the cache must, even if the client is gone by then.
func (s *service) rename(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	name, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1000))
	if err != nil {
		http.Error(w, "a name of at most 1000 bytes, please", http.StatusBadRequest)
		return
	}
	if _, err := s.db.ExecContext(r.Context(), `UPDATE products SET name = ? WHERE id = ?`, string(name), id); err != nil {
		http.Error(w, "try again later", http.StatusServiceUnavailable)
		return
	}
	if err := s.products.Delete(context.WithoutCancel(r.Context()), id); err != nil {
		// The old value may be served for what is left of its lifetime: call again.
		http.Error(w, "saved, but not yet seen everywhere: send it again", http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
