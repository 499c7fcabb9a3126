package sqlite

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/pawlq/pawl"
)

// What is read of a job is of one moment, also when the job goes, and another
// takes its row, between two of the statements.
func TestReadIsOfOneMoment(t *testing.T) {
	s, err := Open(t.Context(), filepath.Join(t.TempDir(), "jobs.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	big := func(id byte) *pawl.Request {
		return &pawl.Request{ID: pawl.ID{id}, Queue: "default", Kind: "k", Payload: bytes.Repeat([]byte{id}, 2*apartSize), MaxAttempts: 1}
	}
	enqueue := func(id byte) {
		if _, err := s.Enqueue(t.Context(), []*pawl.Request{big(id)}); err != nil {
			t.Fatal(err)
		}
	}
	enqueue('a')
	err = s.read(t.Context(), func(run reader) error {
		r, _, _, err := fullRecord(t.Context(), run, s.q, pawl.ID{'a'})
		if err != nil {
			return err
		}
		if _, err := s.Change(context.Background(), pawl.Change{Verb: pawl.Delete, IDs: []pawl.ID{r.id}}); err != nil {
			return err
		}
		enqueue('b')
		j := r.job()
		if err := finishJob(t.Context(), run, s.q, r, j); err != nil {
			return err
		}
		if !bytes.Equal(j.Payload, big('a').Payload) {
			t.Errorf("the payload of a is %d bytes of %q", len(j.Payload), j.Payload[:1])
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if n := s.reads.Stats().InUse; n != 0 {
		t.Errorf("%d connections were not given back", n)
	}
}

// A read waits for a connection no longer than its context lasts, whatever
// another read waits for.
func TestReadGivesUp(t *testing.T) {
	db := openDB(t)
	db.SetMaxOpenConns(2) // one is the writer's
	s, err := New(t.Context(), db, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Configure(t.Context(), "default", pawl.QueueSettings{Paused: new(bool)}); err != nil {
		t.Fatal(err)
	}
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	first := make(chan error, 1)
	go func() {
		_, err := s.Count(t.Context())
		first <- err
	}()
	for db.Stats().WaitCount == 0 {
		runtime.Gosched()
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := s.Get(ctx, "", pawl.ID{1}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want context.DeadlineExceeded", err)
	}
	if err := errors.Join(conn.Close(), <-first); err != nil {
		t.Error(err)
	}
}
