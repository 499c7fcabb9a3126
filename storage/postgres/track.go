package postgres

import (
	"context"
	"sync"
	"time"

	"github.com/pawlq/pawl"
)

// Limits of tracking callers' transactions.
const (
	// maxTracked is how many open transactions are tracked; more than a server
	// has connections.
	maxTracked = 4096
	// trackFor is how long one is. Polling finds what is committed later.
	trackFor = 5 * time.Minute
	// firstLook is when it is looked at first, lookEvery bounds looks in all.
	firstLook   = 2 * time.Millisecond
	lookEvery   = 5 * time.Millisecond
	lookTimeout = 5 * time.Second
	// txNotifyEvery bounds how often a process has callers' transactions notify.
	txNotifyEvery = 50 * time.Millisecond
)

// lookAgain is how long it is until a transaction of some age is looked at again.
func lookAgain(age time.Duration) time.Duration {
	switch {
	case age < 100*time.Millisecond:
		return lookEvery
	case age < time.Second:
		return 25 * time.Millisecond
	}
	return 50 * time.Millisecond
}

// tracker finds out when callers' transactions are committed, and tells. They
// would say so themselves by a NOTIFY each, but such commits take turns on the
// whole server.
type tracker struct {
	s      *Store
	cancel context.CancelFunc
	done   chan struct{}
	wake   chan struct{}

	mu   sync.Mutex
	open map[string]*tracked // by transaction id
}

type tracked struct{ since, next time.Time }

// start begins to look; stop ends it.
func (t *tracker) start(s *Store) {
	t.s, t.open = s, make(map[string]*tracked)
	t.done, t.wake = make(chan struct{}), make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(context.Background())
	t.cancel = cancel
	go t.loop(ctx)
}

// stop takes a last look and waits for the end.
func (t *tracker) stop() {
	t.cancel()
	<-t.done
}

// add tracks a transaction, and reports whether there was room for it.
func (t *tracker) add(xid string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.open) >= maxTracked {
		return false
	}
	now := time.Now()
	t.open[xid] = &tracked{since: now, next: now.Add(firstLook)}
	select {
	case t.wake <- struct{}{}:
	default:
	}
	return true
}

func (t *tracker) loop(ctx context.Context) {
	defer close(t.done)
	var looked time.Time
	for wait := lookEvery; ctx.Err() == nil; {
		next, any := t.next()
		if !any {
			select {
			case <-ctx.Done():
			case <-t.wake:
			}
			continue
		}
		if d := max(time.Until(next), time.Until(looked.Add(wait))); d > 0 {
			sleep(ctx, d)
			continue
		}
		if err := t.look(ctx, t.due(time.Now())); err == nil {
			wait = lookEvery
		} else {
			wait = min(2*wait, notifyMaxWait)
		}
		looked = time.Now()
	}
	last, cancel := context.WithTimeout(context.Background(), lastWord)
	defer cancel()
	_ = t.look(last, t.due(time.Now().Add(trackFor))) // polling finds what it misses
}

// next is when the next look is due.
func (t *tracker) next() (at time.Time, any bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, x := range t.open {
		if !any || x.next.Before(at) {
			at, any = x.next, true
		}
	}
	return at, any
}

// due returns the transactions to look at, and forgets those that have been
// open for too long.
func (t *tracker) due(now time.Time) (xids []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for xid, x := range t.open {
		age := now.Sub(x.since)
		switch {
		case age > trackFor:
			delete(t.open, xid)
		case !x.next.After(now):
			xids = append(xids, xid)
			x.next = now.Add(lookAgain(age))
		}
	}
	return xids
}

// look asks which transactions have ended. It waits for a connection as long as
// ctx allows: the only one may be that of such a transaction.
func (t *tracker) look(ctx context.Context, xids []string) error {
	if len(xids) == 0 {
		return nil
	}
	conn, err := t.s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTimeout)
	defer cancel()
	var ended []string
	committed := false
	err = native{q: conn}.each(ctx, func(row scanner) error {
		var xid string
		var ok bool
		err := row.Scan(&xid, &ok)
		ended, committed = append(ended, xid), committed || ok
		return err
	}, t.s.q.ended, xids)
	t.forget(ended)
	if committed {
		t.s.publish(&events{other: []pawl.Event{{Kind: pawl.EventReady}}})
	}
	return err
}

func (t *tracker) forget(xids []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, xid := range xids {
		delete(t.open, xid)
	}
}
