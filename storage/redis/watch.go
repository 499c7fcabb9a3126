package redis

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pawlq/pawl"
)

// Limits of telling others.
const (
	// eventBuffer is how many events a slow watcher may be behind. What is
	// beyond becomes one EventReady without a queue.
	eventBuffer = 256
	// listenCheck is how often a silent connection is asked whether it lives, and
	// how long it has to answer.
	listenCheck = 10 * time.Second
	// listenPause is the longest pause between attempts to connect again.
	listenPause = time.Second
)

// watchers are those who want to know. They share one subscription, to the
// events for all and to those for this Store.
type watchers struct {
	s    *Store
	self string
	gone chan struct{} // closed by Close

	life   sync.Mutex // held while the listener is started or told to end
	cancel context.CancelFunc
	done   chan struct{} // closed when the last listener that was started has ended

	subscribed atomic.Bool

	mu  sync.Mutex
	all map[*watcher]struct{}
}

type watcher struct {
	events   chan pawl.Event
	overflow atomic.Bool
}

func (w *watchers) init(s *Store) {
	w.s, w.gone = s, make(chan struct{})
	w.self = strconv.FormatUint(rand.Uint64(), 36)
	w.all = make(map[*watcher]struct{})
}

// name is how others can tell this Store of jobs; empty while it does not listen.
func (w *watchers) name() string {
	if w.subscribed.Load() {
		return w.self
	}
	return ""
}

func (s *Store) watchEvents(ctx context.Context, f func(pawl.Event)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	w := &watcher{events: make(chan pawl.Event, eventBuffer)}
	if err := s.watch.join(w); err != nil {
		return err
	}
	defer s.watch.leave(w)
	f(pawl.Event{Kind: pawl.EventReady}) // for what was before
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.watch.gone:
			return pawl.ErrClosed
		case e := <-w.events:
			f(e)
			if w.overflow.CompareAndSwap(true, false) {
				f(pawl.Event{Kind: pawl.EventReady})
			}
		}
	}
}

func (w *watchers) join(one *watcher) error {
	w.life.Lock()
	defer w.life.Unlock()
	select {
	case <-w.gone:
		return pawl.ErrClosed
	default:
	}
	w.mu.Lock()
	w.all[one] = struct{}{}
	first := len(w.all) == 1
	w.mu.Unlock()
	if first {
		ctx, cancel := context.WithCancel(context.Background())
		before := w.done
		w.cancel, w.done = cancel, make(chan struct{})
		go w.listen(ctx, before, w.done) // leave waits for it
	}
	return nil
}

// leave does not keep others from joining while it waits, which takes long if the
// server is out of reach.
func (w *watchers) leave(one *watcher) {
	if done := w.remove(one); done != nil {
		<-done
	}
}

// remove returns, if that was the last watcher, what is closed when nothing listens
// any more.
func (w *watchers) remove(one *watcher) (done <-chan struct{}) {
	w.life.Lock()
	defer w.life.Unlock()
	w.mu.Lock()
	delete(w.all, one)
	last := len(w.all) == 0
	w.mu.Unlock()
	if !last {
		return nil
	}
	w.cancel()
	return w.done
}

func (w *watchers) send(e pawl.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for one := range w.all {
		select {
		case one.events <- e:
		default:
			one.overflow.Store(true)
		}
	}
}

// listen receives events until ctx ends. The subscription connects anew by itself
// when it is asked for the next message after an error. It begins when the one
// before has ended.
func (w *watchers) listen(ctx context.Context, before <-chan struct{}, done chan<- struct{}) {
	defer close(done)
	if before != nil {
		<-before
	}
	sub := w.s.client.Subscribe(ctx, w.s.names.channel, w.s.names.channel+":"+w.self)
	stop := context.AfterFunc(ctx, func() { _ = sub.Close() }) // ends the call that waits
	defer func() {
		w.subscribed.Store(false)
		if stop() {
			_ = sub.Close() // nothing more is expected of it
		}
	}()
	for failures := 0; ctx.Err() == nil; {
		msg, err := sub.ReceiveTimeout(ctx, listenCheck)
		if err == nil {
			failures = 0
			w.receive(msg)
			continue
		}
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() && failures == 0 {
			failures++ // the next silence is an error
			err = sub.Ping(ctx)
		}
		if err != nil && ctx.Err() == nil {
			w.failed(ctx, failures, err)
			failures = min(failures+1, 10)
		}
	}
}

// failed notes that nothing is heard for now.
func (w *watchers) failed(ctx context.Context, failures int, err error) {
	if w.subscribed.Swap(false) || failures == 0 {
		w.s.log.WarnContext(ctx, "pawl/redis: no connection listens; workers poll until one does", "err", err)
	}
	t := time.NewTimer(min(10*time.Millisecond<<failures, listenPause))
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

func (w *watchers) receive(msg any) {
	switch m := msg.(type) {
	case *redis.Subscription:
		if m.Channel != w.s.names.channel { // the last of the two
			w.subscribed.Store(true)
			w.send(pawl.Event{Kind: pawl.EventReady}) // for what was missed
		}
	case *redis.Message:
		e, from := parseMessage(m.Payload)
		w.s.shards.heard(from)
		w.send(e)
	}
}

// parseMessage reads what lua/wake.lua publishes: a letter and a number, the tag, and
// the ID of a claim that ended. It also returns the tag if jobs are ready there. What
// it can't read counts as something that happened somewhere.
func parseMessage(message string) (e pawl.Event, ready tag) {
	anything := pawl.Event{Kind: pawl.EventReady}
	head, rest, ok := strings.Cut(message, " ")
	if !ok || head == "" {
		return anything, ""
	}
	n, err := strconv.ParseInt(head[1:], 10, 64)
	if err != nil || n < 0 {
		return anything, ""
	}
	name, id, _ := strings.Cut(rest, " ")
	queue, locator := tag(name).split()
	switch head[0] {
	case 'R':
		e = pawl.Event{Kind: pawl.EventReady, Queue: queue, In: toDuration(n)}
		if n == 0 {
			ready = tag(name)
		}
		return e, ready
	case 'P':
		return pawl.Event{Kind: pawl.EventPaused, Queue: queue}, ""
	case 'E':
		if id, err := parseID(id); err == nil {
			ref := pawl.Ref{Queue: queue, ID: id, Fence: n, Locator: locator}
			return pawl.Event{Kind: pawl.EventEnded, Queue: queue, Ref: ref}, ""
		}
	}
	return anything, ""
}
