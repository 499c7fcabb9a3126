package mysql_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/mysql"
)

// A job that is gone right after the commit is reported as stored all the same.
// The pool has one connection, which the calls wait for. Which of them gets it first
// is by chance, so there are several rounds.
func TestReceiptOfJobThatIsGone(t *testing.T) {
	for _, slow := range []bool{false, true} {
		t.Run(fmt.Sprintf("slow way %v", slow), func(t *testing.T) { receiptOfJobThatIsGone(t, slow) })
	}
}

func receiptOfJobThatIsGone(t *testing.T, slow bool) {
	db := openDB(t, testserver.MariaDB(t), 1, nil)
	s := open(t, db, &mysql.Options{PollInterval: -1})
	if slow {
		s.SlowWay()
	}
	for range 10 {
		addAndDelete(t, s)
	}
}

// addAndDelete adds a job and deletes it as soon as it is there.
func addAndDelete(t *testing.T, s *mysql.Store) {
	t.Helper()
	db := s.DB()
	old, added := request(pawl.Request{}), request(pawl.Request{})
	if _, err := s.Enqueue(t.Context(), []*pawl.Request{old}); err != nil {
		t.Fatal(err)
	}
	busy, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	waits := db.Stats().WaitCount
	var receipts []pawl.Receipt
	all.Go(func() {
		var err error
		if receipts, err = s.Enqueue(context.WithoutCancel(t.Context()), []*pawl.Request{old, added}); err != nil {
			t.Error(err)
		}
	})
	awaitWaits(db, waits+1)
	all.Go(func() {
		_, err := s.Change(context.WithoutCancel(t.Context()), pawl.Change{Verb: pawl.Delete, IDs: []pawl.ID{added.ID}})
		if err != nil {
			t.Error(err)
		}
	})
	awaitWaits(db, waits+2)
	if err := busy.Close(); err != nil {
		t.Error(err)
	}
	all.Wait()
	if len(receipts) != 2 || receipts[0].Status != pawl.Exists || receipts[1].Status != pawl.Stored {
		t.Errorf("receipts are %+v", receipts)
	}
}

// awaitWaits waits until so many callers have waited for a connection.
func awaitWaits(db *sql.DB, n int64) {
	for db.Stats().WaitCount < n {
		time.Sleep(time.Millisecond)
	}
}
