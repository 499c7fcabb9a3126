package mysql

import (
	"context"
	"database/sql/driver"
	"errors"
	"testing"

	"github.com/pawlq/pawl"
)

// A call that waits for a shared insert can return before that has begun or while
// it is under way, so its caller's memory is not used.
func TestWaitingCallIsCopied(t *testing.T) {
	g := &groups{flights: maxFlights}
	req := &pawl.Request{Payload: []byte("payload"), Meta: map[string]string{"k": "v"}, Priority: 1}
	c, err := g.join(t.Context(), []*pawl.Request{req})
	if err != nil {
		t.Fatal(err)
	}
	req.Payload[0], req.Meta["k"], req.Priority = 'X', "X", 2
	if kept := c.reqs[0]; string(kept.Payload) != "payload" || kept.Meta["k"] != "v" || kept.Priority != 1 {
		t.Errorf("the request became %+v", kept)
	}
}

// What Close has cut is ErrClosed only if nothing can have been stored.
func TestCut(t *testing.T) {
	for _, c := range []struct {
		err  error
		done bool
	}{
		{context.Canceled, false},
		{&sentError{driver.ErrBadConn}, false},
		{&sentError{context.Canceled}, true},
		{&commitError{context.Canceled}, true},
	} {
		if err := cut(c.err); errors.Is(err, pawl.ErrClosed) == c.done {
			t.Errorf("%T %v: error %v", c.err, c.err, err)
		}
	}
}
