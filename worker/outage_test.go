package worker_test

import (
	"context"
	"testing"
	"time"

	"github.com/pawlq/pawl"
)

// telling tells what the test says.
type telling struct {
	*disturbed
	events chan pawl.Event
}

func (s *telling) Watch(ctx context.Context, f func(pawl.Event)) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e := <-s.events:
			f(e)
		}
	}
}

// However long the storage was away, its first event ends the wait.
func TestOutageEndsWithEvent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		events := make(chan pawl.Event)
		var c counting
		f := start(t, func(d *disturbed) pawl.Storage { return &telling{d, events} }, &c, nil)
		for range 20 {
			f.storage.disturb(func(context.Context, string, func() error) error { return errStorage })
			rest(10*time.Minute + time.Second)
			f.enqueue(&pawl.Request{})
			// The connections of before the outage fail once more.
			events <- pawl.Event{Kind: pawl.EventReady}
			rest(10 * time.Millisecond)
			f.storage.heal()
			rest(100 * time.Millisecond)
		}
		c.want(t, 20)
		f.stop()
	})
}
