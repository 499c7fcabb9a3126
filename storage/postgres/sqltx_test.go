package postgres_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/postgres"
)

// sqlDB is a Store beside a database of database/sql.
type sqlDB struct {
	*testing.T
	s  *postgres.Store
	db *sql.DB
}

// TestSQLDrivers writes in transactions of database/sql.
func TestSQLDrivers(t *testing.T) {
	for driver, name := range map[string]string{"pgx": "pgx", "pq": "postgres"} {
		for what, test := range map[string]func(sqlDB){
			"visible after commit": sqlVisible, "rolled back": sqlRolledBack, "savepoint": sqlSavepoint,
			"settles": sqlSettles, "over": sqlOver, "deadlock": sqlDeadlock,
		} {
			t.Run(driver+"/"+what, func(t *testing.T) {
				s := fresh(t, postgres.Options{})
				db, err := sql.Open(name, testserver.Postgres(t).DSN(""))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { db.Close() })
				test(sqlDB{t, s, db})
			})
		}
	}
}

func (d sqlDB) begin(level sql.IsolationLevel) *sql.Tx {
	d.Helper()
	tx, err := d.db.BeginTx(context.Background(), &sql.TxOptions{Isolation: level})
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() { tx.Rollback() })
	return tx
}

func (d sqlDB) commit(tx *sql.Tx) {
	d.Helper()
	if err := tx.Commit(); err != nil {
		d.Fatal(err)
	}
}

func (d sqlDB) exec(tx *sql.Tx, query string) {
	d.Helper()
	if _, err := tx.ExecContext(d.Context(), query); err != nil {
		d.Fatal(err)
	}
}

// awkward are requests with all that is hard to write as a literal.
func awkward() []*pawl.Request {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	return []*pawl.Request{
		request(pawl.Request{Payload: every, Meta: map[string]string{`a"\,{}`: "NULL", "é\x00": ""}, UniqueKey: `k",\ {NULL}`}),
		request(pawl.Request{Payload: bytes.Repeat([]byte(`\x{,"`), 1000), Priority: 1}),
		request(pawl.Request{Priority: 2, Lease: time.Hour, StartBefore: time.Now().Add(time.Hour)}),
	}
}

func sqlVisible(d sqlDB) {
	want := awkward()
	tx := d.begin(sql.LevelDefault)
	receipts, err := d.s.SQLTx(tx).Enqueue(d.Context(), want)
	if err != nil {
		d.Fatal(err)
	}
	claim(d, d.s, 0) // not yet
	if got := state(d, d.s, receipts[0].ID); got != 0 {
		d.Errorf("before the commit the job is %v", got)
	}
	d.commit(tx)
	for i, j := range claim(d, d.s, len(want)) {
		if !bytes.Equal(j.Payload, want[i].Payload) || j.UniqueKey != want[i].UniqueKey || !cmp.Equal(j.Meta, want[i].Meta) {
			d.Errorf("job %d is %+v, want %+v", i, j, want[i])
		}
	}
}

func sqlRolledBack(d sqlDB) {
	kept := enqueue(d, d.s, pawl.Request{})
	ref := claim(d, d.s, 1)[0].Ref
	tx := d.begin(sql.LevelDefault)
	w := d.s.SQLTx(tx)
	undone := enqueue(d, w, pawl.Request{UniqueKey: "k"})
	settle(d, w, pawl.Outcome{Ref: ref, Verb: pawl.Ack})
	if err := tx.Rollback(); err != nil {
		d.Fatal(err)
	}
	if a, b := state(d, d.s, kept.ID), state(d, d.s, undone.ID); a != pawl.Running || b != 0 {
		d.Errorf("after the rollback the jobs are %v and %v, want running and none", a, b)
	}
	if r := enqueue(d, d.s, pawl.Request{UniqueKey: "k"}); r.Status != pawl.Stored {
		d.Errorf("the key is still taken: %+v", r)
	}
}

func sqlSavepoint(d sqlDB) {
	tx := d.begin(sql.LevelDefault)
	first := enqueue(d, d.s.SQLTx(tx), pawl.Request{})
	d.exec(tx, "SAVEPOINT inner_one")
	w := d.s.SQLTx(tx)
	undone := enqueue(d, w, pawl.Request{UniqueKey: "k"})
	if _, err := tx.ExecContext(d.Context(), "SELECT nothing FROM nowhere"); err == nil {
		d.Fatal("a wrong statement succeeded")
	}
	if _, err := w.Enqueue(d.Context(), awkward()); !errors.Is(err, pawl.ErrTxOver) {
		d.Errorf("enqueue in a failed transaction: %v, want ErrTxOver", err)
	}
	d.exec(tx, "ROLLBACK TO SAVEPOINT inner_one")
	again := enqueue(d, d.s.SQLTx(tx), pawl.Request{UniqueKey: "k"})
	d.commit(tx)
	if again.Status != pawl.Stored || state(d, d.s, undone.ID) != 0 {
		d.Errorf("after the savepoint the receipt is %+v, and the job that was undone %v", again, state(d, d.s, undone.ID))
	}
	if got := claim(d, d.s, 2); got[0].ID != first.ID {
		d.Errorf("the first job is %v, want %v", got[0].ID, first.ID)
	}
}

// sqlSettles settles in all ways at each isolation level, while heartbeats are
// committed.
func sqlSettles(d sqlDB) {
	for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
		for i := range 4 {
			enqueue(d, d.s, pawl.Request{Retention: time.Hour, Priority: i})
		}
		jobs := claim(d, d.s, 4)
		tx := d.begin(level)
		d.exec(tx, "SELECT 1") // takes the snapshot
		var renewals []pawl.Renewal
		for _, j := range jobs {
			renewals = append(renewals, pawl.Renewal{Ref: j.Ref, Lease: time.Hour})
		}
		if lost, err := d.s.Extend(d.Context(), renewals); err != nil || len(lost) > 0 {
			d.Fatalf("extend: lost %v, error %v", lost, err)
		}
		stale := jobs[0].Ref
		stale.Fence--
		lost, err := d.s.SQLTx(tx).Settle(d.Context(), []pawl.Outcome{
			{Ref: jobs[0].Ref, Verb: pawl.Ack, Result: []byte("\x00\"\\")},
			{Ref: jobs[1].Ref, Verb: pawl.Nack, Error: `"\{}` + "\n", Stack: "NULL", Delay: time.Hour},
			{Ref: jobs[2].Ref, Verb: pawl.Bury, Error: "e"},
			{Ref: jobs[3].Ref, Verb: pawl.Release, Delay: time.Hour},
			{Ref: stale, Verb: pawl.Bury, Error: "stale"},
		})
		if err != nil || !cmp.Equal(lost, []pawl.Ref{stale}) {
			d.Fatalf("settle at %v: lost %v, error %v, want only the stale one lost", level, lost, err)
		}
		d.commit(tx)
		d.wantSettled(level, jobs)
	}
}

func (d sqlDB) wantSettled(level sql.IsolationLevel, jobs []*pawl.Job) {
	d.Helper()
	after, err := d.s.Get(d.Context(), "", jobs[0].ID, jobs[1].ID, jobs[2].ID, jobs[3].ID)
	if err != nil {
		d.Fatal(err)
	}
	for i, want := range []pawl.State{pawl.Completed, pawl.Scheduled, pawl.Buried, pawl.Scheduled} {
		if after[i].State != want {
			d.Errorf("at %v job %d is %v, want %v", level, i, after[i].State, want)
		}
	}
	if f := after[1].Failures; len(f) != 1 || f[0].Error != `"\{}`+"\n" || string(after[0].Result) != "\x00\"\\" {
		d.Errorf("at %v: failures %+v, result %q", level, f, after[0].Result)
	}
}

// sqlOver settles on a snapshot that is too old.
func sqlOver(d sqlDB) {
	id := enqueue(d, d.s, pawl.Request{}).ID
	ref := claim(d, d.s, 1)[0].Ref
	tx := d.begin(sql.LevelRepeatableRead)
	d.exec(tx, "SELECT 1")
	settle(d, d.s, pawl.Outcome{Ref: ref, Verb: pawl.Nack, Error: "e"})
	w := d.s.SQLTx(tx)
	_, err := w.Settle(d.Context(), []pawl.Outcome{{Ref: ref, Verb: pawl.Ack}})
	if !errors.Is(err, pawl.ErrTxOver) || sqlState(err) != "40001" {
		d.Errorf("settle on an old snapshot: %v, want ErrTxOver and the driver's error", err)
	}
	if _, err := w.Enqueue(d.Context(), awkward()); !errors.Is(err, pawl.ErrTxOver) {
		d.Errorf("enqueue afterwards: %v, want ErrTxOver", err)
	}
	if err := tx.Commit(); err == nil {
		d.Error("the transaction was committed")
	}
	if got := state(d, d.s, id); got != pawl.Ready {
		d.Errorf("the job is %v, want ready", got)
	}
}

// sqlState is the SQLSTATE of an error of one of the drivers.
func sqlState(err error) string {
	var one *pgconn.PgError
	var other *pq.Error
	switch {
	case errors.As(err, &one):
		return one.Code
	case errors.As(err, &other):
		return string(other.Code)
	}
	return ""
}

// sqlDeadlock acks two claims in two transactions, in opposite orders.
func sqlDeadlock(d sqlDB) {
	enqueue(d, d.s, pawl.Request{})
	enqueue(d, d.s, pawl.Request{})
	jobs := claim(d, d.s, 2)
	one, other := d.begin(sql.LevelDefault), d.begin(sql.LevelDefault)
	ack := func(w pawl.Writer, j *pawl.Job) error {
		_, err := w.Settle(d.Context(), []pawl.Outcome{{Ref: j.Ref, Verb: pawl.Ack}})
		return err
	}
	w1, w2 := d.s.SQLTx(one), d.s.SQLTx(other)
	if err := errors.Join(ack(w1, jobs[0]), ack(w2, jobs[1])); err != nil {
		d.Fatal(err)
	}
	second := make(chan error, 1)
	go func() { second <- errors.Join(ack(w2, jobs[0]), other.Rollback()) }()
	err := errors.Join(ack(w1, jobs[1]), one.Rollback())
	err2 := <-second
	if a, b := errors.Is(err, pawl.ErrTxOver), errors.Is(err2, pawl.ErrTxOver); a == b {
		d.Errorf("errors %v and %v, want ErrTxOver for one of them", err, err2)
	}
	if got := max(sqlState(err), sqlState(err2)); got != "40P01" {
		d.Errorf("SQLSTATE %q, want 40P01", got)
	}
}
