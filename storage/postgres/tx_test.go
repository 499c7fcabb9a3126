package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/postgres"
	"github.com/pawlq/pawl/storage/storagetest"
)

func beginAt(t *testing.T, s *postgres.Store, level pgx.TxIsoLevel) pgx.Tx {
	t.Helper()
	tx, err := s.Pool().BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tx.Rollback(context.Background()) })
	return tx
}

var levels = []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}

// TestHeldAck holds an ack open for three leases, at each isolation level.
func TestHeldAck(t *testing.T) {
	for _, level := range levels {
		for _, retention := range []time.Duration{time.Hour, pawl.DeleteNow} {
			t.Run(string(level)+"/"+retention.String(), func(t *testing.T) { heldAck(t, level, retention) })
		}
	}
}

func heldAck(t *testing.T, level pgx.TxIsoLevel, retention time.Duration) {
	clock := storagetest.NewClock()
	s := fresh(t, postgres.Options{Clock: clock.Now})
	for range 3 {
		enqueue(t, s, pawl.Request{Retention: retention})
	}
	jobs := claim(t, s, 3)
	held, other, dead := jobs[0].Ref, jobs[1].Ref, jobs[2].Ref
	tx := beginAt(t, s, level)
	if _, err := tx.Exec(t.Context(), "SELECT 1"); err != nil { // takes the snapshot
		t.Fatal(err)
	}
	renew := func() {
		t.Helper()
		lost, err := s.Extend(t.Context(), []pawl.Renewal{{Ref: held, Lease: time.Minute}, {Ref: other, Lease: time.Minute}})
		if err != nil || len(lost) > 0 {
			t.Fatalf("extend: lost %v, error %v", lost, err)
		}
	}
	renew() // committed after the snapshot, which must not hinder the ack
	settle(t, s.Tx(tx), pawl.Outcome{Ref: held, Verb: pawl.Ack})
	var rescued []pawl.Ref
	for range 6 {
		clock.Advance(30 * time.Second)
		renew()
		swept, err := s.Sweep(t.Context(), pawl.SweepSpec{Limit: 10})
		if err != nil {
			t.Fatal(err)
		}
		rescued = append(rescued, swept.Rescued...)
	}
	if d := cmp.Diff([]pawl.Ref{dead}, rescued); d != "" {
		t.Fatalf("rescued (-want +got):\n%s", d)
	}
	leavesBusy(t, s, held, other)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := map[bool]pawl.State{true: pawl.Completed, false: 0}[retention > 0]
	if got := state(t, s, held.ID); got != want {
		t.Errorf("the held job is %v, want %v", got, want)
	}
	settle(t, s, pawl.Outcome{Ref: held, Verb: pawl.Ack, Repeat: true})
}

// leavesBusy settles a held and a free claim.
func leavesBusy(t *testing.T, s *postgres.Store, held, free pawl.Ref) {
	t.Helper()
	lost, err := s.Settle(t.Context(), []pawl.Outcome{{Ref: held, Verb: pawl.Ack}, {Ref: free, Verb: pawl.Bury, Error: "e"}})
	var busy *pawl.BusyError
	if !errors.As(err, &busy) || len(lost) > 0 {
		t.Fatalf("settle of a held job: lost %v, error %v, want a BusyError", lost, err)
	}
	if d := cmp.Diff([]pawl.Ref{held}, busy.Refs); d != "" {
		t.Errorf("busy (-want +got):\n%s", d)
	}
	if got := state(t, s, free.ID); got != pawl.Buried {
		t.Errorf("the job beside the held one is %v, want buried", got)
	}
}

func TestTxAborted(t *testing.T) {
	s := fresh(t, postgres.Options{})
	tx := beginAt(t, s, pgx.ReadCommitted)
	w := s.Tx(tx)
	enqueue(t, w, pawl.Request{})
	if _, err := tx.Exec(t.Context(), "SELECT nothing FROM nowhere"); err == nil {
		t.Fatal("a wrong statement succeeded")
	}
	for range 2 {
		if _, err := w.Enqueue(t.Context(), []*pawl.Request{request(pawl.Request{})}); !errors.Is(err, pawl.ErrTxOver) {
			t.Errorf("enqueue in an aborted transaction: %v, want ErrTxOver", err)
		}
	}
	if _, err := w.Settle(t.Context(), []pawl.Outcome{{Verb: pawl.Ack}}); !errors.Is(err, pawl.ErrTxOver) {
		t.Errorf("settle in an aborted transaction: %v, want ErrTxOver", err)
	}
}

// TestTxContext: a call whose context is over when it begins changes nothing,
// and one whose context ends while it waits ends the transaction.
func TestTxContext(t *testing.T) {
	s := fresh(t, postgres.Options{})
	first, second := enqueue(t, s, pawl.Request{}).ID, enqueue(t, s, pawl.Request{}).ID
	jobs := claim(t, s, 2)
	for _, kind := range []string{"pgx", "database/sql"} {
		t.Run(kind, func(t *testing.T) {
			w, commit := writer(t, s, kind)
			over, cancel := context.WithCancel(t.Context())
			cancel()
			if _, err := w.Enqueue(over, []*pawl.Request{request(pawl.Request{})}); !errors.Is(err, context.Canceled) || errors.Is(err, pawl.ErrTxOver) {
				t.Errorf("enqueue: %v, want only Canceled", err)
			}
			settle(t, w, pawl.Outcome{Ref: jobs[0].Ref, Verb: pawl.Ack})
			holder := beginAt(t, s, pgx.ReadCommitted)
			settle(t, s.Tx(holder), pawl.Outcome{Ref: jobs[1].Ref, Verb: pawl.Ack})
			short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			_, err := w.Settle(short, []pawl.Outcome{{Ref: jobs[1].Ref, Verb: pawl.Ack}})
			if !errors.Is(err, pawl.ErrTxOver) {
				t.Errorf("settle that waited: %v, want ErrTxOver", err)
			}
			if _, err := w.Settle(t.Context(), []pawl.Outcome{{Ref: jobs[0].Ref, Verb: pawl.Ack}}); !errors.Is(err, pawl.ErrTxOver) {
				t.Errorf("settle afterwards: %v, want ErrTxOver", err)
			}
			if err := commit(); err == nil {
				t.Error("the transaction was committed")
			}
			if err := holder.Rollback(t.Context()); err != nil {
				t.Error(err)
			}
			if a, b := state(t, s, first), state(t, s, second); a != pawl.Running || b != pawl.Running {
				t.Errorf("the jobs are %v and %v, want both running", a, b)
			}
		})
	}
}

// writer begins a transaction of pgx or database/sql.
func writer(t *testing.T, s *postgres.Store, kind string) (w pawl.Writer, commit func() error) {
	t.Helper()
	if kind == "pgx" {
		tx := beginAt(t, s, pgx.ReadCommitted)
		return s.Tx(tx), func() error { return tx.Commit(context.Background()) }
	}
	db := stdlib.OpenDBFromPool(s.Pool())
	t.Cleanup(func() { db.Close() })
	tx, err := db.BeginTx(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tx.Rollback() })
	return s.SQLTx(tx), tx.Commit
}

// TestTxHalf: a call that fails after its first statement leaves a transaction
// that can't be committed.
func TestTxHalf(t *testing.T) {
	s := fresh(t, postgres.Options{})
	id := enqueue(t, s, pawl.Request{}).ID
	ref := claim(t, s, 1)[0].Ref
	db := stdlib.OpenDBFromPool(s.Pool())
	defer db.Close()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	ctx, cancel := context.WithCancel(t.Context())
	ack := pawl.Outcome{Ref: ref, Verb: pawl.Ack}
	// The same twice takes two statements.
	_, err = s.SQLTx(&halting{Tx: tx, halt: cancel}).Settle(ctx, []pawl.Outcome{ack, ack})
	if !errors.Is(err, pawl.ErrTxOver) || !errors.Is(err, context.Canceled) {
		t.Errorf("settle: %v, want ErrTxOver and Canceled", err)
	}
	if err := tx.Commit(); err == nil {
		t.Error("the transaction was committed")
	}
	if got := state(t, s, id); got != pawl.Running {
		t.Errorf("the job is %v, want running", got)
	}
}

// halting ends the caller's context before the second statement.
type halting struct {
	*sql.Tx
	halt func()
	n    int
}

func (h *halting) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if h.n++; h.n == 2 {
		h.halt()
	}
	return h.Tx.QueryContext(ctx, query, args...)
}

// TestTxSerialization acks one claim in two transactions that can't both win.
func TestTxSerialization(t *testing.T) {
	s := fresh(t, postgres.Options{})
	id := enqueue(t, s, pawl.Request{}).ID
	ref := claim(t, s, 1)[0].Ref
	tx := beginAt(t, s, pgx.RepeatableRead)
	if _, err := tx.Exec(t.Context(), "SELECT 1"); err != nil {
		t.Fatal(err)
	}
	settle(t, s, pawl.Outcome{Ref: ref, Verb: pawl.Nack, Error: "e"})
	w := s.Tx(tx)
	_, err := w.Settle(t.Context(), []pawl.Outcome{{Ref: ref, Verb: pawl.Ack}})
	if !errors.Is(err, pawl.ErrTxOver) {
		t.Fatalf("settle on an old snapshot: %v, want ErrTxOver", err)
	}
	if _, err := w.Enqueue(t.Context(), []*pawl.Request{request(pawl.Request{})}); !errors.Is(err, pawl.ErrTxOver) {
		t.Errorf("enqueue afterwards: %v, want ErrTxOver", err)
	}
	if got := state(t, s, id); got != pawl.Ready {
		t.Errorf("the job is %v, want ready", got)
	}
}

func TestTxSavepoint(t *testing.T) {
	s := fresh(t, postgres.Options{})
	tx := beginAt(t, s, pgx.ReadCommitted)
	kept := enqueue(t, s.Tx(tx), pawl.Request{})
	inner, err := tx.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	undone := enqueue(t, s.Tx(inner), pawl.Request{UniqueKey: "k"})
	if err := inner.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	again := enqueue(t, s.Tx(tx), pawl.Request{UniqueKey: "k"})
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		id   pawl.ID
		want pawl.State
	}{{kept.ID, pawl.Ready}, {undone.ID, 0}, {again.ID, pawl.Ready}} {
		if got := state(t, s, c.id); got != c.want {
			t.Errorf("job is %v, want %v", got, c.want)
		}
	}
}

// TestTxRefused: a call that is refused leaves the transaction as it was.
func TestTxRefused(t *testing.T) {
	s := fresh(t, postgres.Options{})
	tx := beginAt(t, s, pgx.ReadCommitted)
	w := s.Tx(tx)
	limited := request(pawl.Request{MaxDepth: 1, WhenFull: pawl.Reject})
	_, err := w.Enqueue(t.Context(), []*pawl.Request{limited, request(pawl.Request{MaxDepth: 1, WhenFull: pawl.Reject})})
	if !errors.Is(err, pawl.ErrFull) {
		t.Fatalf("enqueue into a full queue: %v, want ErrFull", err)
	}
	id := enqueue(t, w, pawl.Request{}).ID
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if state(t, s, limited.ID) != 0 || state(t, s, id) != pawl.Ready {
		t.Error("a refused call left something behind, or a later one did not count")
	}
}

// TestSQLTx enqueues and settles by database/sql what is hard to write as a
// literal.
func TestSQLTx(t *testing.T) {
	s := fresh(t, postgres.Options{})
	db := stdlib.OpenDBFromPool(s.Pool())
	defer db.Close()
	inTx := func(f func(w pawl.Writer)) {
		t.Helper()
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
		f(s.SQLTx(tx))
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	want := request(pawl.Request{
		Payload: []byte("\x00\\\"',{}\xff"), Meta: map[string]string{`a"\,{}`: "NULL", "é\x00": ""}, UniqueKey: `k",\ {NULL}`,
	})
	inTx(func(w pawl.Writer) {
		if _, err := w.Enqueue(t.Context(), []*pawl.Request{want, request(pawl.Request{Priority: 1})}); err != nil {
			t.Fatal(err)
		}
		if r := enqueue(t, w, pawl.Request{UniqueKey: want.UniqueKey}); r.Status != pawl.Duplicate || r.ID != want.ID {
			t.Errorf("receipt of a held key: %+v", r)
		}
	})
	jobs := claim(t, s, 2)
	got := jobs[0]
	if d := cmp.Diff(want.Payload, got.Payload) + cmp.Diff(want.Meta, got.Meta) + cmp.Diff(want.UniqueKey, got.UniqueKey); d != "" {
		t.Errorf("the job (-want +got):\n%s", d)
	}
	inTx(func(w pawl.Writer) {
		settle(t, w, pawl.Outcome{Ref: got.Ref, Verb: pawl.Ack, Result: []byte("\x00\"")},
			pawl.Outcome{Ref: jobs[1].Ref, Verb: pawl.Nack, Error: `"\{}` + "\n", Stack: "NULL"})
	})
	after, err := s.Get(t.Context(), "", got.ID, jobs[1].ID)
	if err != nil {
		t.Fatal(err)
	}
	if after[0].State != pawl.Completed || string(after[0].Result) != "\x00\"" {
		t.Errorf("after the ack: %v with result %q", after[0].State, after[0].Result)
	}
	if f := after[1].Failures; len(f) != 1 || f[0].Error != `"\{}`+"\n" || f[0].Stack != "NULL" {
		t.Errorf("failures: %+v", f)
	}
}

var _ postgres.Querier = (*sql.Tx)(nil)

// TestPollOnly works without a session, in all the ways that a pooler allows.
func TestPollOnly(t *testing.T) {
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		t.Run(mode.String(), func(t *testing.T) {
			first := fresh(t, postgres.Options{})
			config := first.Pool().Config()
			config.MaxConns, config.ConnConfig.DefaultQueryExecMode = 1, mode
			s := beside(t, withConfig(t, first, config), postgres.Options{PollOnly: true})
			events := watch(t, s)
			awaitEvent(t, events, anyReady) // of the beginning
			keyed := enqueue(t, s, pawl.Request{UniqueKey: "k", Payload: []byte("\x00'\\"), Meta: map[string]string{"a": "b"}})
			awaitEvent(t, events, func(e pawl.Event) bool { return e.Queue == "default" })
			j := claim(t, s, 1)[0]
			if string(j.Payload) != "\x00'\\" || j.ID != keyed.ID {
				t.Errorf("claimed %v with payload %q", j.ID, j.Payload)
			}
			if lost, err := s.Extend(t.Context(), []pawl.Renewal{{Ref: j.Ref, Lease: time.Hour}}); err != nil || len(lost) > 0 {
				t.Errorf("extend: lost %v, error %v", lost, err)
			}
			err := s.InTx(t.Context(), func(_ pgx.Tx, w pawl.Writer) error {
				settle(t, w, pawl.Outcome{Ref: j.Ref, Verb: pawl.Bury, Error: "e"})
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			changed, err := s.Change(t.Context(), pawl.Change{Verb: pawl.Kick, IDs: []pawl.ID{j.ID}})
			if err != nil || changed[0].Status != pawl.Done {
				t.Errorf("kick: %+v, %v", changed, err)
			}
			if _, err := s.Sweep(t.Context(), pawl.SweepSpec{Limit: 10, MaxBuried: 1, BuriedRetention: time.Hour}); err != nil {
				t.Error(err)
			}
			page, err := s.List(t.Context(), pawl.ListSpec{Limit: 10, Payloads: true})
			if err != nil || len(page.Jobs) != 1 {
				t.Errorf("list: %d jobs, %v", len(page.Jobs), err)
			}
			if _, err := s.Count(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestLimitInTxKeepsSettings: the transaction of a caller plans as it did after an
// enqueue with a limit, also one that was refused.
func TestLimitInTxKeepsSettings(t *testing.T) {
	s := fresh(t, postgres.Options{})
	tx := beginAt(t, s, pgx.ReadCommitted)
	const of = `SELECT string_agg(name || ' ' || setting, ', ' ORDER BY name) FROM pg_settings
		WHERE name ~ '^enable_' OR name LIKE 'jit%' OR name = 'plan_cache_mode'`
	settings := func() (all string) {
		t.Helper()
		if err := tx.QueryRow(t.Context(), of).Scan(&all); err != nil {
			t.Fatal(err)
		}
		return all
	}
	if _, err := tx.Exec(t.Context(), "SET LOCAL enable_sort = off"); err != nil {
		t.Fatal(err)
	}
	want := settings()
	enqueue(t, s.Tx(tx), pawl.Request{MaxDepth: 1})
	if got := settings(); got != want {
		t.Errorf("the settings are %s, want %s", got, want)
	}
	full := request(pawl.Request{MaxDepth: 1, WhenFull: pawl.Reject})
	if _, err := s.Tx(tx).Enqueue(t.Context(), []*pawl.Request{full}); !errors.Is(err, pawl.ErrFull) {
		t.Fatalf("error %v, want ErrFull", err)
	}
	if got := settings(); got != want {
		t.Errorf("after a refusal the settings are %s, want %s", got, want)
	}
}

// TestAckOfWhatTheSnapshotLacks: a transaction at a higher isolation level was begun
// before the claim. It is over, and the claim is not.
func TestAckOfWhatTheSnapshotLacks(t *testing.T) {
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			s := fresh(t, postgres.Options{})
			enqueue(t, s, pawl.Request{Retention: time.Hour})
			tx := beginAt(t, s, level)
			if _, err := tx.Exec(t.Context(), "SELECT 1 FROM "+s.Schema()+".pawl_job"); err != nil { // takes the snapshot
				t.Fatal(err)
			}
			ack := pawl.Outcome{Ref: claim(t, s, 1)[0].Ref, Verb: pawl.Ack}
			if lost, err := s.Tx(tx).Settle(t.Context(), []pawl.Outcome{ack}); !errors.Is(err, pawl.ErrTxOver) {
				t.Errorf("lost %v, error %v; want ErrTxOver", lost, err)
			}
			if err := tx.Commit(t.Context()); err == nil {
				t.Error("the transaction could be committed")
			}
			settle(t, s, ack)
			if got := state(t, s, ack.Ref.ID); got != pawl.Completed {
				t.Errorf("the job is %v", got)
			}
		})
	}
}

// TestAckWaitsForAck: an ack in a transaction waits for another one that removes
// the record, and is then lost.
func TestAckWaitsForAck(t *testing.T) {
	s := fresh(t, postgres.Options{})
	enqueue(t, s, pawl.Request{Retention: pawl.DeleteNow})
	ack := pawl.Outcome{Ref: claim(t, s, 1)[0].Ref, Verb: pawl.Ack}
	first, second := beginAt(t, s, pgx.ReadCommitted), beginAt(t, s, pgx.ReadCommitted)
	settle(t, s.Tx(first), ack)
	var lost []pawl.Ref
	var err error
	var wg sync.WaitGroup
	wg.Go(func() { lost, err = s.Tx(second).Settle(t.Context(), []pawl.Outcome{ack}) })
	awaitLocks(t, s, first, 1)
	if err := first.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if err != nil || len(lost) != 1 || lost[0] != ack.Ref {
		t.Errorf("lost %v, error %v; want %v", lost, err, ack.Ref)
	}
}

// TestInTxCannotCommit: the function has swallowed an error that ended its
// transaction.
func TestInTxCannotCommit(t *testing.T) {
	s := fresh(t, postgres.Options{})
	var id pawl.ID
	err := s.InTx(t.Context(), func(tx pgx.Tx, w pawl.Writer) error {
		id = enqueue(t, w, pawl.Request{}).ID
		if _, err := tx.Exec(t.Context(), "SELECT 1/0"); err == nil {
			t.Error("1/0 is a number")
		}
		return nil
	})
	if !errors.Is(err, pawl.ErrTxOver) {
		t.Errorf("error %v, want ErrTxOver", err)
	}
	if got := state(t, s, id); got != 0 {
		t.Errorf("the job is %v", got)
	}
}

// TestTxOfAClosedStore: neither a transaction begun before nor InTx goes on.
func TestTxOfAClosedStore(t *testing.T) {
	s := fresh(t, postgres.Options{})
	w := s.Tx(beginAt(t, s, pgx.ReadCommitted))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Enqueue(t.Context(), []*pawl.Request{request(pawl.Request{})}); !errors.Is(err, pawl.ErrClosed) {
		t.Errorf("enqueue: %v, want ErrClosed", err)
	}
	err := s.InTx(t.Context(), func(pgx.Tx, pawl.Writer) error { t.Error("the function was called"); return nil })
	if !errors.Is(err, pawl.ErrClosed) {
		t.Errorf("InTx: %v, want ErrClosed", err)
	}
}

// TestInTxOfASilentServer: InTx ends with its context, although the server does not
// answer to the rollback.
func TestInTxOfASilentServer(t *testing.T) {
	proxy := testserver.NewProxy(t, testserver.Postgres(t))
	o := &postgres.Options{Schema: fresh(t, postgres.Options{}).Schema(), PollOnly: true}
	s := open(t, dialPool(t, proxy.DSN(""), 1, pgx.QueryExecModeCacheStatement), o)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- s.InTx(ctx, func(_ pgx.Tx, w pawl.Writer) error {
			enqueue(t, w, pawl.Request{})
			proxy.Strand()
			cancel()
			return ctx.Err()
		})
	}()
	select {
	case err := <-done:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("error %v, want that of the context", err)
		}
	case <-time.After(15 * time.Second):
		t.Error("InTx has not ended 15 s after its context")
	}
	proxy.Cut()
	if c, err := s.Claim(t.Context(), spec(1)); err != nil || len(c.Jobs) > 0 {
		t.Errorf("then claimed %v, error %v", c.Jobs, err)
	}
}

// TestPrepared: with PollOnly a transaction that has enqueued can be prepared.
func TestPrepared(t *testing.T) {
	server := testserver.NewPostgres(t, &testserver.PostgresOptions{Settings: map[string]string{"max_prepared_transactions": "1"}})
	s := open(t, openPool(t, server, 2), &postgres.Options{PollOnly: true})
	watch(t, s) // who is told of the commit
	tx := beginAt(t, s, pgx.ReadCommitted)
	enqueue(t, s.Tx(tx), pawl.Request{})
	if _, err := tx.Exec(t.Context(), "PREPARE TRANSACTION 'p'"); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(t.Context()); err != nil { // there is none on the connection any more
		t.Fatal(err)
	}
	exec(t, s.Pool(), "COMMIT PREPARED 'p'")
	claim(t, s, 1)
}
