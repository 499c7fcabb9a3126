package sqlite_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/sqlite"
	"github.com/pawlq/pawl/storage/storagetest"
)

func TestStorage(t *testing.T) {
	storagetest.Run(t, harness())
}

// harness runs the contract on files of our own.
func harness() storagetest.Harness {
	open := func(t testing.TB, path string, clock func() time.Time) pawl.Storage {
		s, err := sqlite.Open(t.Context(), path, &sqlite.Options{Clock: clock, Synchronous: sqlite.Off})
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
	return storagetest.Harness{
		Open: func(t testing.TB, clock func() time.Time) pawl.Storage {
			return open(t, filepath.Join(t.TempDir(), "jobs.db"), clock)
		},
		Reopen: func(t testing.TB, s pawl.Storage, clock func() time.Time) pawl.Storage {
			return open(t, fileOf(t, s), clock)
		},
		Begin:        begin,
		Capabilities: storagetest.Capabilities{OneWriter: true},
	}
}

func fileOf(t testing.TB, s pawl.Storage) (path string) {
	row := s.(*sqlite.Store).DB().QueryRowContext(t.Context(), "SELECT file FROM pragma_database_list")
	if err := row.Scan(&path); err != nil {
		t.Fatal(err)
	}
	return path
}

func begin(t testing.TB, s pawl.Storage) (w pawl.Writer, commit, rollback func() error) {
	store := s.(*sqlite.Store)
	tx, err := store.DB().BeginTx(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tx.Rollback() })
	return store.Tx(tx), tx.Commit, tx.Rollback
}
