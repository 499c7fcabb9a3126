package mysql_test

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/pawlq/pawl"
)

// Calls share inserts, and none waits for the ID or the unique key of another that an
// open transaction has taken.
func TestTakenHoldsUpItsOwn(t *testing.T) {
	one := request(pawl.Request{})
	for name, c := range map[string]struct{ taken, free func() *pawl.Request }{
		"ID": {
			func() *pawl.Request { return one },
			func() *pawl.Request { return request(pawl.Request{}) },
		},
		"key": {
			func() *pawl.Request { return request(pawl.Request{UniqueKey: "taken"}) },
			func() *pawl.Request { return request(pawl.Request{UniqueKey: fmt.Sprint("free", rand.Int())}) },
		},
	} {
		t.Run(name, func(t *testing.T) { takenHoldsUpItsOwn(t, c.taken, c.free) })
	}
}

func takenHoldsUpItsOwn(t *testing.T, taken, free func() *pawl.Request) {
	s := fresh(t, nil)
	tx := beginTx(t, s.DB(), sql.LevelReadCommitted)
	if _, err := s.Tx(tx).Enqueue(t.Context(), []*pawl.Request{taken()}); err != nil {
		t.Fatal(err)
	}
	var waiting, others sync.WaitGroup
	get := func(ctx context.Context, r *pawl.Request, want pawl.ReceiptStatus) {
		receipts, err := s.Enqueue(ctx, []*pawl.Request{r})
		if err != nil || (receipts[0].Status == pawl.Stored) != (want == pawl.Stored) {
			t.Errorf("receipts %+v, error %v; want %v", receipts, err, want)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // less than the server waits
	defer cancel()
	for range 10 {
		waiting.Go(func() { get(t.Context(), taken(), pawl.Duplicate) })
		for range 10 {
			others.Go(func() { get(ctx, free(), pawl.Stored) })
		}
	}
	others.Wait()
	if err := tx.Commit(); err != nil {
		t.Error(err)
	}
	waiting.Wait()
}
