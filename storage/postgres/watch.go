package postgres

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pawlq/pawl"
)

// Limits of telling others.
const (
	// eventBuffer is how many events a slow watcher may be behind. What is
	// beyond becomes one EventReady without a queue.
	eventBuffer = 256
	// notifyEvery bounds how often a process sends NOTIFY, which takes a lock on
	// the whole server. The first one goes out at once.
	notifyEvery = 5 * time.Millisecond
	// maxPending is how many messages may wait to be sent while the server
	// can't be reached. What is beyond becomes one about all queues.
	maxPending = 4096
	// notifyTimeout bounds one attempt to send.
	notifyTimeout = 5 * time.Second
	// listenCheck is how often a silent connection is asked whether it lives.
	listenCheck   = 30 * time.Second
	listenTimeout = 5 * time.Second
)

// events are what a call has to tell when it is committed.
type events struct {
	ready map[string]time.Duration // queue, and when the first job is due
	other []pawl.Event
}

// due notes that a job of a queue will be due.
func (e *events) due(queue string, in time.Duration) {
	if e.ready == nil {
		e.ready = make(map[string]time.Duration)
	}
	if old, ok := e.ready[queue]; !ok || in < old {
		e.ready[queue] = in
	}
}

// ended notes that a claim was ended by someone other than its worker.
func (e *events) ended(ref pawl.Ref) {
	e.other = append(e.other, pawl.Event{Kind: pawl.EventEnded, Queue: ref.Queue, Ref: ref})
}

func (e *events) add(more *events) {
	for queue, in := range more.ready {
		e.due(queue, in)
	}
	e.other = append(e.other, more.other...)
}

func (e *events) all() []pawl.Event {
	all := make([]pawl.Event, 0, len(e.ready)+len(e.other))
	for queue, in := range e.ready {
		all = append(all, pawl.Event{Kind: pawl.EventReady, Queue: queue, In: in})
	}
	return append(all, e.other...)
}

// publish tells the watchers of this Store at once, and those of others through
// the server.
func (s *Store) publish(e *events) {
	for _, event := range e.all() {
		s.watch.send(event)
		s.note.add(event)
	}
}

// message is an event as NOTIFY carries it: kind, time, sender, queue, claim.
func message(e pawl.Event, from string) string {
	text := fmt.Sprintf("%d %d %s %s", e.Kind, e.In.Microseconds(), from, e.Queue)
	if e.Kind == pawl.EventEnded {
		text += fmt.Sprintf(" %s %d", e.Ref.ID, e.Ref.Fence)
	}
	return text
}

// parseMessage reads a message of another Store. What it can't read counts as
// something that happened somewhere.
func parseMessage(text, self string) (e pawl.Event, mine bool) {
	anything := pawl.Event{Kind: pawl.EventReady}
	fields := strings.Split(text, " ")
	if len(fields) != 4 && len(fields) != 6 {
		return anything, false
	}
	kind, err := strconv.Atoi(fields[0])
	us, err2 := strconv.ParseInt(fields[1], 10, 64)
	if err != nil || err2 != nil {
		return anything, false
	}
	e = pawl.Event{Kind: pawl.EventKind(kind), In: toDuration(max(us, 0)), Queue: fields[3]}
	if e.Kind == pawl.EventEnded {
		if len(fields) != 6 {
			return anything, false
		}
		id, err := uuid.Parse(fields[4])
		fence, err2 := strconv.ParseInt(fields[5], 10, 64)
		if err != nil || err2 != nil {
			return anything, false
		}
		e.Ref = pawl.Ref{Queue: e.Queue, ID: id, Fence: fence}
	}
	return e, fields[2] == self
}

// fromTx is the sender of messages from a caller's transaction: nobody knows of
// them before the commit.
const fromTx = "-"

func (s *Store) channel() string { return fmt.Sprintf("pawl_%016x", uint64(nameHash(s.o))) }

// notifier sends messages to other processes, all that have gathered at once.
type notifier struct {
	s      *Store
	self   string // names this Store in messages
	cancel context.CancelFunc
	done   chan struct{}
	wake   chan struct{}

	mu      sync.Mutex
	pending map[string]struct{}
}

// start begins to send; stop ends it.
func (n *notifier) start(s *Store) {
	n.s, n.self = s, strconv.FormatUint(rand.Uint64(), 36)
	n.done, n.wake = make(chan struct{}), make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel = cancel
	if s.o.PollOnly {
		close(n.done)
		return
	}
	go n.loop(ctx)
}

// stop sends what is left and waits for the end.
func (n *notifier) stop() {
	n.cancel()
	<-n.done
}

func (n *notifier) add(e pawl.Event) {
	if n.s.o.PollOnly {
		return
	}
	n.mu.Lock()
	if n.pending == nil {
		n.pending = make(map[string]struct{})
	}
	if len(n.pending) >= maxPending {
		clear(n.pending)
		e = pawl.Event{Kind: pawl.EventReady}
	}
	n.pending[message(e, n.self)] = struct{}{}
	n.mu.Unlock()
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

func (n *notifier) take() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := make([]string, 0, len(n.pending))
	for m := range n.pending {
		all = append(all, m)
	}
	n.pending = nil
	return all
}

func (n *notifier) loop(ctx context.Context) {
	defer close(n.done)
	tick := time.NewTimer(0)
	<-tick.C
	for try := 1; ; {
		select {
		case <-ctx.Done():
			n.send(n.take()) // the last word; a lost one is found by polling
			return
		case <-n.wake:
		}
		wait := notifyEvery
		if all := n.take(); !n.send(all) {
			n.putBack(all)
			wait = min(retryPause<<min(try, 10), time.Second)
			try++
		} else {
			try = 1
		}
		tick.Reset(wait)
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// send reports whether the server has taken the messages.
func (n *notifier) send(all []string) bool {
	if len(all) == 0 {
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), notifyTimeout)
	defer cancel()
	return native{q: n.s.pool}.exec(ctx, n.s.q.notify, n.s.channel(), all) == nil
}

func (n *notifier) putBack(all []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.pending == nil {
		n.pending = make(map[string]struct{})
	}
	for _, m := range all {
		if len(n.pending) < maxPending {
			n.pending[m] = struct{}{}
		}
	}
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// watchers are those who want to know. They share one listener.
type watchers struct {
	life   sync.Mutex // held while the listener is started or ended
	cancel context.CancelFunc
	done   chan struct{}

	mu   sync.Mutex
	all  map[*watcher]struct{}
	gone chan struct{} // closed by Close
}

type watcher struct {
	events   chan pawl.Event
	overflow atomic.Bool
}

func (s *Store) watchEvents(ctx context.Context, f func(pawl.Event)) error {
	if err := s.open(ctx); err != nil {
		return err
	}
	w := &watcher{events: make(chan pawl.Event, eventBuffer)}
	s.join(w)
	defer s.leave(w)
	w.events <- pawl.Event{Kind: pawl.EventReady} // for what was before
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

func (s *Store) join(w *watcher) {
	s.watch.life.Lock()
	defer s.watch.life.Unlock()
	s.watch.mu.Lock()
	if s.watch.all == nil {
		s.watch.all = make(map[*watcher]struct{})
	}
	s.watch.all[w] = struct{}{}
	first := len(s.watch.all) == 1
	s.watch.mu.Unlock()
	if !first || s.o.PollOnly {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.watch.cancel, s.watch.done = cancel, make(chan struct{})
	go s.listen(ctx, s.watch.done) // leave waits for it
}

func (s *Store) leave(w *watcher) {
	s.watch.life.Lock()
	defer s.watch.life.Unlock()
	s.watch.mu.Lock()
	delete(s.watch.all, w)
	last := len(s.watch.all) == 0
	s.watch.mu.Unlock()
	if last && !s.o.PollOnly {
		s.watch.cancel()
		<-s.watch.done
	}
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

// listen keeps a connection that listens until ctx ends.
func (s *Store) listen(ctx context.Context, done chan struct{}) {
	defer close(done)
	for try := 1; ctx.Err() == nil; try++ {
		heard, err := s.listenOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		if heard {
			try = 1
			s.o.Logger.WarnContext(ctx, "pawl/postgres: lost the connection that listens; workers poll until it is back", "err", err)
		}
		_ = pause(ctx, try+listenPause) // only the end of ctx, which ends the loop
	}
}

// listenPause makes the first pause before a new connection about 50 ms.
const listenPause = 4

// listenOnce listens on a new connection until that fails, and reports whether
// it ever listened.
func (s *Store) listenOnce(ctx context.Context) (heard bool, err error) {
	conn, err := s.connect(ctx)
	if err != nil {
		return false, err
	}
	defer func() {
		end, cancel := context.WithTimeout(context.Background(), listenTimeout)
		defer cancel()
		_ = conn.Close(end) // nothing more is expected of it
	}()
	if _, err := conn.Exec(ctx, "LISTEN "+s.channel(), pgx.QueryExecModeSimpleProtocol); err != nil {
		return false, err
	}
	s.watch.send(pawl.Event{Kind: pawl.EventReady}) // for what was missed
	for {
		wait, cancel := context.WithTimeout(ctx, listenCheck)
		n, err := conn.WaitForNotification(wait)
		silent := wait.Err() != nil && ctx.Err() == nil
		cancel()
		if err != nil && silent && !conn.IsClosed() {
			if err := ping(ctx, conn); err != nil {
				return true, err
			}
			continue
		}
		if err != nil {
			return true, err
		}
		if e, mine := parseMessage(n.Payload, s.note.self); !mine {
			s.watch.send(e)
		}
	}
}

func ping(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, listenTimeout)
	defer cancel()
	return conn.Ping(ctx)
}

// connect opens a connection like those of the pool, outside of it.
func (s *Store) connect(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, listenTimeout)
	defer cancel()
	pool := s.pool.Config()
	config := pool.ConnConfig.Copy()
	if pool.BeforeConnect != nil {
		if err := pool.BeforeConnect(ctx, config); err != nil {
			return nil, err
		}
	}
	return pgx.ConnectConfig(ctx, config)
}
