package postgres

import (
	"fmt"
	"maps"
	"testing"

	"github.com/pawlq/pawl"
)

// TestDepthLocks: a call with limits for as many queues as it may have leaves room in
// the server's table of locks.
func TestDepthLocks(t *testing.T) {
	s := groupStore(t)
	queues := make(map[string]bool, pawl.MaxBatch)
	for i := range pawl.MaxBatch {
		queues[fmt.Sprint("q", i)] = true
	}
	err := s.inTx(t.Context(), func(run runner) error {
		e := &enqueue{s: s, ctx: t.Context(), run: run}
		if err := e.lockDepths(maps.Keys(queues)); err != nil {
			return err
		}
		n, err := e.number("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()")
		if n == 0 || n > depthLocks {
			t.Errorf("%d locks, want at most %d", n, depthLocks)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
