package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/sqlite"
)

// Connections that are opened after the program has gone elsewhere open the
// same file.
func TestRelativePath(t *testing.T) {
	t.Chdir(t.TempDir())
	s := openAt(t, "jobs.db", nil)
	t.Chdir(t.TempDir())
	r := request()
	enqueue(t, s, r)
	if get(t, s, r.ID) == nil {
		t.Error("the job is in another file")
	}
	execSQL(t, s, "UPDATE pawl_job SET worker = 'me'") // fails in another file
}

func TestPathIsNoFile(t *testing.T) {
	dir := t.TempDir()
	if _, err := sqlite.Open(t.Context(), filepath.Join(dir, "a\x00b"), nil); !errors.Is(err, pawl.ErrInvalid) {
		t.Errorf("NUL: got %v, want ErrInvalid", err)
	}
	if _, err := sqlite.Open(t.Context(), dir, nil); !errors.Is(err, sqlite.ErrNotDatabase) {
		t.Errorf("folder: got %v, want ErrNotDatabase", err)
	}
}

// A schema that someone has damaged is refused as such.
func TestDamagedSchema(t *testing.T) {
	for _, damage := range []string{
		"UPDATE pawl_meta SET version = -1", "UPDATE pawl_meta SET version = 0", "DELETE FROM pawl_meta", "DROP TABLE pawl_meta",
	} {
		path := filepath.Join(t.TempDir(), "jobs.db")
		s := openAt(t, path, nil)
		execSQL(t, s, damage)
		for _, leave := range []bool{false, true} {
			if _, err := sqlite.Open(t.Context(), path, &sqlite.Options{NoMigrate: leave}); !errors.Is(err, pawl.ErrSchema) {
				t.Errorf("%s: got %v, want ErrSchema", damage, err)
			}
		}
	}
}

// A claim whose fence can't be kept, and so would be given twice, is none.
func TestFenceIsGone(t *testing.T) {
	s := open(t, nil)
	enqueue(t, s, request())
	execSQL(t, s, "DELETE FROM pawl_meta")
	if _, err := s.Claim(t.Context(), ask(1)); !errors.Is(err, pawl.ErrSchema) {
		t.Errorf("got %v, want ErrSchema", err)
	}
	if c := count(t, s); c.Ready != 1 {
		t.Errorf("%+v, want the job ready", c)
	}
}

// The error of a transaction that its context has ended says so.
func TestInTxContextEnds(t *testing.T) {
	s := open(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	err := s.InTx(ctx, func(tx *sql.Tx, w pawl.Writer) error {
		enqueue(t, w, request())
		cancel()
		for _, err := tx.Exec("SELECT 1"); !errors.Is(err, sql.ErrTxDone); _, err = tx.Exec("SELECT 1") {
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	if c := count(t, s); c.Ready != 0 {
		t.Error("the job was stored")
	}
}

// The grace of a claim's own lease is as long as that.
func TestGraceOfShortLease(t *testing.T) {
	c := newClock()
	s := open(t, &sqlite.Options{Clock: c.Now, Synchronous: sqlite.Off})
	passed := time.Duration(0)
	sqlite.Steady(s, func() time.Duration { return passed })
	enqueue(t, s, request())
	claimFor(t, s, time.Second)
	c.Advance(time.Hour) // a step
	if n := rescued(t, s); n != 0 {
		t.Errorf("rescued %d at once, want 0", n)
	}
	c.Advance(1100 * time.Millisecond)
	passed += 1100 * time.Millisecond
	if n := rescued(t, s); n != 1 {
		t.Errorf("rescued %d after the grace, want 1", n)
	}
}
