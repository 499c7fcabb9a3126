//go:build cgo && !race

package sqlite_test

import (
	"database/sql"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/mattn/go-sqlite3"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/sqlite"
	"github.com/pawlq/pawl/storage/storagetest"
)

// The contract on the C driver, in the caller's own *sql.DB. It is not run with the
// race detector, which sees the same Go code with the other driver.
func TestStorageCgo(t *testing.T) {
	open := func(t testing.TB, path string, clock func() time.Time) pawl.Storage {
		db := openCgo(t, path)
		s, err := sqlite.New(t.Context(), db, &sqlite.Options{Clock: clock, Synchronous: sqlite.Off})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		return s
	}
	h := harness()
	h.Open = func(t testing.TB, clock func() time.Time) pawl.Storage {
		return open(t, filepath.Join(t.TempDir(), "jobs.db"), clock)
	}
	h.Reopen = func(t testing.TB, s pawl.Storage, clock func() time.Time) pawl.Storage {
		return open(t, fileOf(t, s), clock)
	}
	storagetest.Run(t, h)
}

func openCgo(t testing.TB, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+path+"?_txlock=immediate&_sync=0&_busy_timeout=5000")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func TestCgoErrorsAreTyped(t *testing.T) {
	path := filepath.Join(t.TempDir(), "jobs.db")
	db, err := sql.Open("sqlite3", "file:"+path+"?_busy_timeout=0")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	s, err := sqlite.New(t.Context(), db, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	testOldSnapshot(t, s)
	var driver sqlite3.Error
	_, err = oldSnapshot(t, s)
	if !errors.As(err, &driver) || driver.ExtendedCode != sqlite3.ErrBusySnapshot {
		t.Errorf("the driver's error is not reachable: %v", err)
	}
}
