//go:build unix

package sqlite_test

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"
)

// A process that is stopped in the middle of a write holds the file, which
// SQLite can't help, and no more: calls end with their contexts, reads go
// on, and when it dies all is as if it had not begun.
func TestStoppedProcess(t *testing.T) {
	s := open(t, nil)
	first := request()
	enqueue(t, s, first)
	cmd, said := holder(t, fileOf(t, s))
	if !said.Scan() {
		t.Fatal("the process says nothing")
	}
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Enqueue(ctx, requests(1)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Enqueue: got %v, want context.DeadlineExceeded", err)
	}
	if _, err := s.DB().ExecContext(ctx, "CREATE TABLE mine (n)"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a statement: got %v, want context.DeadlineExceeded", err)
	}
	if err := s.InTx(ctx, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("InTx: got %v, want context.DeadlineExceeded", err)
	}
	if get(t, s, first.ID) == nil || count(t, s).Ready != 1 {
		t.Error("a read failed")
	}
	waiting := make(chan error, 1)
	go func() {
		_, err := s.Enqueue(t.Context(), requests(1))
		waiting <- err
	}()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-waiting; err != nil {
		t.Error(err)
	}
	if c := count(t, s); c.Ready != 2 {
		t.Errorf("%d jobs, want 2", c.Ready)
	}
}
