package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/memory"
	"github.com/pawlq/pawl/storage/sqlite"
	"github.com/pawlq/pawl/task"
	"github.com/pawlq/pawl/task/tasktest"
)

// TestMain lets the test binary be the worker process, too.
func TestMain(m *testing.M) {
	if slices.Contains(os.Args, "-work") {
		main()
		return
	}
	os.Exit(m.Run())
}

const want = `97 = [97]
360 = [2 2 2 3 3 5]
600851475143 = [71 839 1471 6857]
0: failed: 0 has no prime factors
`

func TestProduce(t *testing.T) {
	var out bytes.Buffer
	if err := produce(t.Context(), "", &out); err != nil {
		t.Fatal(err)
	}
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", &out, want)
	}
}

// TestWorkerComesLater: the jobs wait for a worker process.
func TestWorkerComesLater(t *testing.T) {
	db := filepath.Join(t.TempDir(), "jobs.db")
	store, err := sqlite.Open(t.Context(), db, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	q := pawl.New(store, nil)
	receipt, err := q.Enqueue(t.Context(), task.New(Factor{35}))
	if err != nil {
		t.Fatal(err)
	}
	again, err := q.Enqueue(t.Context(), task.New(Factor{35}))
	if err != nil || again.Status != pawl.Duplicate || again.ID != receipt.ID {
		t.Errorf("the same question again: got %+v, %v", again, err)
	}
	stop, err := startWorker(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	if f, err := wait(t.Context(), q, receipt); err != nil || !slices.Equal(f.Primes, []int64{5, 7}) {
		t.Errorf("got %v, %v", f, err)
	}
}

// TestProducerDies: what a killed producer leaves is a pipe that ends.
func TestProducerDies(t *testing.T) {
	db := filepath.Join(t.TempDir(), "jobs.db")
	store, err := sqlite.Open(t.Context(), db, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	q := pawl.New(store, nil)
	receipt, err := q.Enqueue(t.Context(), task.New(Factor{35}))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-db", db, "-work", "-attached")
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := wait(t.Context(), q, receipt); err != nil {
		t.Error(err)
	}
	if err := pipe.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("worker process: %v", err)
	}
}

func TestFactor(t *testing.T) {
	for n, want := range map[int64][]int64{1: nil, 2: {2}, 49: {7, 7}} {
		if f, err := tasktest.RunResult(t.Context(), factor, Factor{n}); err != nil || !slices.Equal(f.Primes, want) {
			t.Errorf("%d: got %v, %v", n, f, err)
		}
	}
}

// TestNobodyWorks waits a minute, in a bubble of synctest.
func TestNobodyWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := pawl.New(memory.New(nil), nil)
		receipt, err := q.Enqueue(t.Context(), task.New(Factor{35}))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := wait(t.Context(), q, receipt); !errors.Is(err, errNobody) {
			t.Errorf("got %v", err)
		}
	})
}
