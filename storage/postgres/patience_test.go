package postgres_test

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/postgres"
	"github.com/pawlq/pawl/storage/storagetest"
)

// soon bounds calls that an open transaction must not hold up.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// TestHeldKeyHoldsNoConnection: more calls than there are connections wait for a
// key that an open transaction holds.
func TestHeldKeyHoldsNoConnection(t *testing.T) {
	first := fresh(t, postgres.Options{})
	config := first.Pool().Config()
	config.MaxConns = 4
	s := withConfig(t, first, config)
	enqueue(t, s, pawl.Request{})
	j := claim(t, s, 1)[0]
	tx := beginAt(t, first, pgx.ReadCommitted)
	enqueue(t, first.Tx(tx), pawl.Request{UniqueKey: "k"})
	const calls = 8
	var wg sync.WaitGroup
	before := s.Pool().Stat().AcquireCount()
	for range calls {
		wg.Go(func() {
			if _, err := s.Enqueue(t.Context(), []*pawl.Request{request(pawl.Request{UniqueKey: "k"})}); err != nil {
				t.Error(err)
			}
		})
	}
	ctx := soon(t)
	for s.Pool().Stat().AcquireCount() < before+2*calls && ctx.Err() == nil { // each has given up once
		runtime.Gosched()
	}
	if _, err := s.Enqueue(ctx, []*pawl.Request{request(pawl.Request{})}); err != nil {
		t.Error(err)
	}
	if _, err := s.Extend(ctx, []pawl.Renewal{{Ref: j.Ref, Lease: time.Minute}}); err != nil {
		t.Error(err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	stats, err := s.Count(t.Context(), "default")
	if err != nil || stats[0].Ready != 2 {
		t.Errorf("%+v, %v; want one job of the key and one without", stats, err)
	}
}

// TestHeldKeyHoldsNoLimit: a call that waits for a key lets others count.
func TestHeldKeyHoldsNoLimit(t *testing.T) {
	s := fresh(t, postgres.Options{})
	tx := beginAt(t, s, pgx.ReadCommitted)
	enqueue(t, s.Tx(tx), pawl.Request{UniqueKey: "k"})
	var wg sync.WaitGroup
	before := s.Pool().Stat().AcquireCount()
	wg.Go(func() {
		if _, err := s.Enqueue(t.Context(), []*pawl.Request{request(pawl.Request{UniqueKey: "k", MaxDepth: 100})}); err != nil {
			t.Error(err)
		}
	})
	ctx := soon(t)
	for s.Pool().Stat().AcquireCount() < before+2 && ctx.Err() == nil { // it has met the lock
		runtime.Gosched()
	}
	if _, err := s.Enqueue(ctx, []*pawl.Request{request(pawl.Request{MaxDepth: 100})}); err != nil {
		t.Error(err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
}

// TestDropInTxHoldsNoClaims: a caller's transaction has dropped a scheduled job
// of a queue that is full of such.
func TestDropInTxHoldsNoClaims(t *testing.T) {
	s := fresh(t, postgres.Options{})
	enqueue(t, s, pawl.Request{})
	j := claim(t, s, 1)[0]
	r := pawl.Request{MaxDepth: 3, WhenFull: pawl.DropOldest, Delay: time.Hour}
	for range 3 {
		enqueue(t, s, r)
	}
	tx := beginAt(t, s, pgx.ReadCommitted)
	enqueue(t, s.Tx(tx), r)
	if lost, _, err := s.Cycle(soon(t), []pawl.Outcome{{Ref: j.Ref, Verb: pawl.Ack}}, spec(1)); err != nil || len(lost) > 0 {
		t.Error(lost, err)
	}
}

// TestKickHoldsNothingWhileItWaits: one job of a change waits for the holder of
// its key, which an open transaction has settled.
func TestKickHoldsNothingWhileItWaits(t *testing.T) {
	s := fresh(t, postgres.Options{})
	a := enqueue(t, s, pawl.Request{UniqueKey: "k"})
	settle(t, s, pawl.Outcome{Ref: claim(t, s, 1)[0].Ref, Verb: pawl.Ack})
	enqueue(t, s, pawl.Request{UniqueKey: "k"})
	holder := claim(t, s, 1)[0]
	enqueue(t, s, pawl.Request{})
	other := claim(t, s, 1)[0]
	tx := beginAt(t, s, pgx.ReadCommitted)
	settle(t, s.Tx(tx), pawl.Outcome{Ref: holder.Ref, Verb: pawl.Ack})
	var changed []pawl.Changed
	var wg sync.WaitGroup
	wg.Go(func() {
		var err error
		changed, err = s.Change(t.Context(), pawl.Change{Verb: pawl.Kick, IDs: []pawl.ID{a.ID, other.ID}})
		if err != nil {
			t.Error(err)
		}
	})
	awaitLocks(t, s, tx, 1)
	settle(t, s, pawl.Outcome{Ref: other.Ref, Verb: pawl.Ack})
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if changed[0].Status != pawl.Done || changed[1].Status != pawl.WrongState {
		t.Errorf("%+v", changed)
	}
}

// TestPayloadsAreNotRead: neither a rescue nor a change has a use for them.
func TestPayloadsAreNotRead(t *testing.T) {
	clock := storagetest.NewClock()
	s := fresh(t, postgres.Options{Clock: clock.Now})
	const n, size = 50, 1 << 20
	var ids []pawl.ID
	for range n {
		ids = append(ids, enqueue(t, s, pawl.Request{Payload: make([]byte, size)}).ID)
	}
	claim(t, s, n)
	clock.Advance(time.Hour)
	for name, call := range map[string]func() error{
		"rescue": func() error {
			swept, err := s.Sweep(t.Context(), pawl.SweepSpec{Limit: 100})
			if len(swept.Rescued) != n {
				t.Errorf("rescued %d jobs", len(swept.Rescued))
			}
			return err
		},
		"reschedule": func() error {
			_, err := s.Change(t.Context(), pawl.Change{Verb: pawl.Reschedule, IDs: ids, Delay: time.Hour})
			return err
		},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if err := call(); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		if got := after.TotalAlloc - before.TotalAlloc; got > n*size/4 {
			t.Errorf("%s of %d jobs allocates %d bytes", name, n, got)
		}
	}
}

// TestSweepSaysWhatItDid: a sweep that ends half-way returns what it has purged.
func TestSweepSaysWhatItDid(t *testing.T) {
	s := fresh(t, postgres.Options{})
	for _, queue := range []string{"a", "b"} {
		enqueue(t, s, pawl.Request{Queue: queue})
		ask := spec(1)
		ask.Queues[0].Queue = queue
		c, err := s.Claim(t.Context(), ask)
		if err != nil || len(c.Jobs) != 1 {
			t.Fatal(err, len(c.Jobs))
		}
		if _, err := s.Extend(t.Context(), []pawl.Renewal{{Ref: c.Jobs[0].Ref, Lease: time.Minute}}); err != nil {
			t.Fatal(err)
		}
		settle(t, s, pawl.Outcome{Ref: c.Jobs[0].Ref, Verb: pawl.Bury})
	}
	tx := beginAt(t, s, pgx.ReadCommitted)
	if _, err := tx.Exec(t.Context(), "SELECT 1 FROM "+s.Schema()+".pawl_lease l JOIN "+s.Schema()+".pawl_job j USING (seq) WHERE j.queue = 'b' FOR UPDATE OF l"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var swept pawl.Swept
	var err error
	var wg sync.WaitGroup
	wg.Go(func() { swept, err = s.Sweep(ctx, pawl.SweepSpec{Limit: 100, BuriedRetention: time.Microsecond}) })
	awaitLocks(t, s, tx, 1)
	cancel()
	wg.Wait()
	if err == nil || swept.Purged != 1 {
		t.Errorf("purged %d, error %v; want 1 and one", swept.Purged, err)
	}
}

// TestListenerHasTheRoleOfThePool: a connection of the pool takes a role after it
// was made, and so does the one that listens.
func TestListenerHasTheRoleOfThePool(t *testing.T) {
	first := fresh(t, postgres.Options{})
	config := first.Pool().Config()
	var mu sync.Mutex
	made := 0
	config.AfterConnect = func(context.Context, *pgx.Conn) error {
		mu.Lock()
		defer mu.Unlock()
		made++
		return nil
	}
	config.MaxConns = 1
	pool := openWith(t, config)
	s := open(t, pool, &postgres.Options{Schema: first.Schema()})
	awaitListening(t, first, watch(t, s))
	mu.Lock()
	defer mu.Unlock()
	if made != 2 {
		t.Errorf("AfterConnect was called %d times, want for the pool and for the listener", made)
	}
}
