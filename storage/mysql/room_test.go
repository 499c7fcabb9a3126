package mysql_test

import (
	"database/sql"
	"testing"

	"github.com/pawlq/pawl"
)

// A claim changes rows where they are: one that grows takes another place in its page, and
// the server logs the whole page, 16 KiB, for each few of them.
func TestClaimKeepsRowsInPlace(t *testing.T) {
	s := fresh(t, nil)
	const n, most = 1000, 1500 // bytes of log for a job: 600, and 4,300 without claimRoom
	reqs := make([]*pawl.Request, n)
	for i := range reqs {
		reqs[i] = request(pawl.Request{Payload: make([]byte, 100)})
	}
	if _, err := s.Enqueue(t.Context(), reqs); err != nil {
		t.Fatal(err)
	}
	if jobs, err := s.Get(t.Context(), "", reqs[0].ID); err != nil || jobs[0].WorkerID != "" {
		t.Fatalf("the worker of a job that was never claimed is %q, error %v", jobs[0].WorkerID, err)
	}
	before := logged(t, s.DB())
	for range n / 100 {
		c := spec(100)
		c.Worker = "a-worker-on-a-host-with-a-name"
		claimed, err := s.Claim(t.Context(), c)
		if err != nil || len(claimed.Jobs) != 100 || claimed.Jobs[0].WorkerID != c.Worker {
			t.Fatalf("claimed %d jobs, error %v", len(claimed.Jobs), err)
		}
	}
	if each := (logged(t, s.DB()) - before) / n; each > most {
		t.Errorf("a claim logs %d bytes for each job, want at most %d", each, most)
	}
}

// logged is how many bytes the server has written to its log.
func logged(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	var name string
	if err := db.QueryRowContext(t.Context(), "SHOW GLOBAL STATUS LIKE 'Innodb_lsn_current'").Scan(&name, &n); err != nil {
		t.Fatal(err)
	}
	return n
}
