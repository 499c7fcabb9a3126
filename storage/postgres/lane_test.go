package postgres

import (
	"context"
	"runtime"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawlq/pawl"
)

// TestLeftCallIsCopied: a caller that has given up uses its buffer for something
// else while the insert that it shares is under way.
func TestLeftCallIsCopied(t *testing.T) {
	config := planPool(t).Config()
	config.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s, err := New(t.Context(), pool, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	enqueue := func(ctx context.Context, payload []byte) (pawl.ID, error) {
		r := &pawl.Request{ID: uuid.Must(uuid.NewV7()), Queue: "q", Kind: "k", Payload: payload, MaxAttempts: 1}
		_, err := s.Enqueue(ctx, []*pawl.Request{r})
		return r.ID, err
	}
	l := &s.group.plain
	l.flights = maxFlights // so that the call waits
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan pawl.ID)
	for range 2 { // a single one would end with its context
		go func() {
			payload := []byte("mine")
			id, err := enqueue(ctx, payload)
			if err == nil {
				t.Error("the call did not end with its context")
			}
			copy(payload, "else")
			left <- id
		}()
	}
	for waiting := 0; waiting < 2; runtime.Gosched() {
		l.mu.Lock()
		waiting = len(l.waiting)
		l.mu.Unlock()
	}
	l.next() // the insert waits for the connection
	cancel()
	ids := []pawl.ID{<-left, <-left}
	conn.Release()
	s.group.flights.Wait()
	jobs, err := s.Get(t.Context(), "", ids...)
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range jobs {
		if j == nil || string(j.Payload) != "mine" {
			t.Errorf("stored %+v", j)
		}
	}
}
