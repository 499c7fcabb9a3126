package mysql_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/mysql"
)

// migrateTogether has ten processes upgrade the tables, each by connections of
// its own.
func (o *old) migrateTogether() error {
	var name string
	if err := o.db.QueryRow("SELECT DATABASE()").Scan(&name); err != nil {
		return err
	}
	errs := make([]error, 10)
	var wg sync.WaitGroup
	for i := range errs {
		db := connect(o.t, testserver.MariaDB(o.t), name, 2, nil)
		wg.Go(func() { errs[i] = mysql.Migrate(context.Background(), db, nil) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// TestUpgrade: jobs of version 1 stay what they are, and what a program of
// version 1 has claimed can be found and settled.
func TestUpgrade(t *testing.T) {
	o := newOld(t)
	var ids []pawl.ID
	for range 4 {
		id, err := o.enqueue()
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	done, err := o.claim(1, 1)
	if err == nil {
		err = o.ack(done)
	}
	if err != nil {
		t.Fatal(err)
	}
	const token = 77
	running, err := o.claim(2, token)
	if err != nil || len(running) != 2 {
		t.Fatal(running, err)
	}
	for range 2 { // the second time there is nothing to do
		if err := o.migrateTogether(); err != nil {
			t.Fatal(err)
		}
	}
	s := open(t, o.db, &mysql.Options{NoMigrate: true})
	for i, want := range []pawl.State{pawl.Completed, pawl.Running, pawl.Running, pawl.Ready} {
		if got := state(t, s, ids[i]); got != want {
			t.Errorf("job %d is %v, want %v", i, got, want)
		}
	}
	ask := spec(2)
	ask.Token, ask.Repeat = token, true
	c, err := s.Claim(t.Context(), ask)
	if err != nil || len(c.Jobs) != 2 || c.Jobs[0].ID != ids[1] || c.Jobs[1].ID != ids[2] {
		t.Fatalf("the repeated claim gave %v, error %v", c.Jobs, err)
	}
	settle(t, s, pawl.Outcome{Ref: c.Jobs[0].Ref, Verb: pawl.Ack})
	if err := o.ack(running[1:]); err != nil {
		t.Error(err)
	}
	if j := claim(t, s, 1)[0]; j.ID != ids[3] {
		t.Error("the job that was ready is another one")
	}
}

// TestOldPrograms: programs of version 1 go on while ten processes upgrade the
// tables, which a transaction of a caller holds up, and beside new programs;
// every job is done once.
func TestOldPrograms(t *testing.T) {
	o := newOld(t)
	const each = 400
	d := &done{t: t, n: map[pawl.ID]int{}, over: make(chan struct{})}
	var enqueuers, workers sync.WaitGroup
	for range 2 {
		enqueuers.Go(func() {
			for range each {
				if _, err := o.enqueue(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range 2 {
		workers.Go(func() { d.work(func(n int64) ([]pawl.ID, error) { return o.cycle(int64(i)<<32 + n) }) })
	}
	tx := beginTx(t, o.db, sql.LevelRepeatableRead)
	if _, err := tx.Exec("SELECT id FROM pawl_job LIMIT 1"); err != nil {
		t.Fatal(err)
	}
	migrated := make(chan error, 1)
	go func() { migrated <- o.migrateTogether() }()
	o.awaitAlter()
	before := d.count()
	for end := time.Now().Add(time.Minute); d.count() < before+100 && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	if d.count() < before+100 {
		t.Error("the old programs do not get on while a migration waits")
	}
	select {
	case err := <-migrated:
		t.Errorf("migrated past an open transaction, error %v", err)
	default:
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := <-migrated; err != nil {
		t.Fatal(err)
	}
	s := open(t, o.db, nil)
	enqueuers.Go(func() {
		for range each {
			enqueue(t, s, pawl.Request{})
		}
	})
	workers.Go(func() { d.work(func(int64) ([]pawl.ID, error) { return cycleOnce(s) }) })
	enqueuers.Wait()
	for end := time.Now().Add(time.Minute); d.count() < 3*each && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	close(d.over)
	workers.Wait()
	if d.count() != 3*each {
		t.Errorf("%d of %d jobs were done", d.count(), 3*each)
	}
	for id, n := range d.n {
		if n != 1 {
			t.Errorf("job %v was done %d times", id, n)
		}
	}
	claim(t, s, 0)
}

// awaitAlter waits until a migration waits for a table.
func (o *old) awaitAlter() {
	o.t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		var n int
		err := o.db.QueryRow(`SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE()
			AND info LIKE '%ALTER TABLE pawl_job%' AND state LIKE 'Waiting for table metadata lock%'`).Scan(&n)
		if err != nil {
			o.t.Fatal(err)
		}
		if n > 0 {
			return
		}
	}
	o.t.Fatal("no migration waits for the open transaction")
}

func cycleOnce(s *mysql.Store) (ids []pawl.ID, err error) {
	c, err := s.Claim(context.Background(), spec(3))
	if len(c.Jobs) == 0 || err != nil {
		return nil, err
	}
	var outcomes []pawl.Outcome
	for _, j := range c.Jobs {
		ids = append(ids, j.ID)
		outcomes = append(outcomes, pawl.Outcome{Ref: j.Ref, Verb: pawl.Ack})
	}
	lost, err := s.Settle(context.Background(), outcomes)
	if len(lost) > 0 {
		err = errors.Join(err, fmt.Errorf("lost %v", lost))
	}
	return ids, err
}

// done counts how often each job was done.
type done struct {
	t    *testing.T
	mu   sync.Mutex
	n    map[pawl.ID]int
	over chan struct{}
}

func (d *done) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.n)
}

func (d *done) work(cycle func(n int64) ([]pawl.ID, error)) {
	for n := int64(1); ; n++ {
		select {
		case <-d.over:
			return
		default:
		}
		ids, err := cycle(n)
		if err != nil {
			d.t.Error(err)
			return
		}
		d.mu.Lock()
		for _, id := range ids {
			d.n[id]++
		}
		d.mu.Unlock()
	}
}
