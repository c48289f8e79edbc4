package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Server answers requests for items; it's safe for concurrent use.
type Server struct {
	items map[string]Item
	now   func() time.Time
}

type Item struct {
	Name  string            `json:"name"`
	Price float64           `json:"price"`
	Tags  map[string]string `json:"tags,omitempty"`
}

var errNoItem = errors.New("no such item")

func (s *Server) find(ctx context.Context, name string) (*Item, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	default:
	}
	item, ok := s.items[name]
	if !ok {
		return nil, fmt.Errorf("%w: %q", errNoItem, name)
	}
	return &item, nil
}

func (s *Server) check() error {
	if err := s.first(); err != nil {
		return err
	}
	if err := s.second(); err != nil {
		return err
	}
	if err := s.third(); err != nil {
		return err
	}
	return nil
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	item, err := s.find(r.Context(), r.URL.Query().Get("name"))
	switch {
	case errors.Is(err, errNoItem):
		http.Error(w, err.Error(), http.StatusNotFound)
	case err != nil:
		http.Error(w, "internal error", http.StatusInternalServerError)
	default:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(item)
	}
}
