package redis_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
)

// TestRolledBack takes from the server what it has written last, as a loss of power does
// with appendfsync everysec, or a failover to a replica that lags. What was claimed then is
// lost, no fence is given again, and nothing that is left is out of order.
func TestRolledBack(t *testing.T) {
	// With everysec what was answered is written later, if the disk is busy.
	server := testserver.NewRedis(t, &testserver.RedisOptions{Fsync: "always"})
	s := open(t, connect(t, server), nil)
	mustEnqueue(t, s, requests(6, pawl.Request{})...)
	before := mustClaim(t, s, 2)
	log := appendOnlyFile(t, server)
	size := sizeOf(t, log)

	lost := request(pawl.Request{UniqueKey: "key"})
	mustEnqueue(t, s, lost)
	spec := asking(3)
	got, err := s.Claim(t.Context(), spec)
	if err != nil || len(got.Jobs) != 3 {
		t.Fatal(len(got.Jobs), err)
	}
	mustSettle(t, s, acks([]*pawl.Job{before[0], got.Jobs[0]}))

	server.Kill()
	if err := os.Truncate(log, size); err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	stale := acks(got.Jobs)
	for i := range stale {
		stale[i].Repeat = true
	}
	if refs, err := s.Settle(t.Context(), stale); err != nil || len(refs) != 3 {
		t.Errorf("lost %d claims: %v", len(refs), err)
	}
	if refs, err := s.Extend(t.Context(), []pawl.Renewal{{Ref: got.Jobs[1].Ref, Lease: time.Minute}}); err != nil || len(refs) != 1 {
		t.Errorf("lost %d renewals: %v", len(refs), err)
	}
	spec.Repeat, spec.Max = true, 10
	spec.Queues[0].Max = 10
	again, err := s.Claim(t.Context(), spec)
	if err != nil || len(again.Jobs) != 4 {
		t.Fatalf("claimed %d jobs: %v", len(again.Jobs), err)
	}
	for i, j := range got.Jobs {
		if again.Jobs[i].ID != j.ID || again.Jobs[i].Fence <= j.Fence || again.Jobs[i].Attempt != 1 {
			t.Errorf("claimed %+v after %+v", again.Jobs[i].Ref, j.Ref)
		}
	}
	mustSettle(t, s, acks(again.Jobs))
	mustSettle(t, s, acks(before)) // whose claim was not undone
	if r := mustEnqueue(t, s, lost); r[0].Status != pawl.Stored {
		t.Errorf("receipt %+v", r[0])
	}
	wantStats(t, s, pawl.QueueStats{Ready: 1, Completed: 6})
}

// appendOnlyFile is the file that the server appends to.
func appendOnlyFile(t *testing.T, server *testserver.RedisServer) string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(filepath.Dir(server.Addr()), "appendonlydir", "*.incr.aof"))
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	return all[0]
}

// sizeOf is the size of a file to which all has been written that was answered.
func sizeOf(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}
