package postgres

import (
	"sync"
	"testing"
	"time"

	"github.com/pawlq/pawl"
)

// TestSlowWatcher misses events, and is told that there may be jobs anywhere.
func TestSlowWatcher(t *testing.T) {
	begun, goOn, anywhere := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var once, all sync.Once
	s, err := New(t.Context(), planPool(t), &Options{PollOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	var watching sync.WaitGroup
	watching.Go(func() {
		_ = s.Watch(t.Context(), func(e pawl.Event) {
			first := false
			once.Do(func() { first = true; close(begun); <-goOn })
			if !first && e.Kind == pawl.EventReady && e.Queue == "" {
				all.Do(func() { close(anywhere) })
			}
		})
	})
	t.Cleanup(func() { s.Close(); watching.Wait() })
	wait := func(c chan struct{}) {
		t.Helper()
		select {
		case <-c:
		case <-time.After(20 * time.Second):
			t.Fatal("the watcher was not called")
		}
	}
	wait(begun)
	for range eventBuffer + 1 {
		s.watch.send(pawl.Event{Kind: pawl.EventPaused, Queue: "q"})
	}
	close(goOn)
	wait(anywhere)
}
