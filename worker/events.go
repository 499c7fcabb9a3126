package worker

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/text"
)

// EventType is the sort of an [Event].
type EventType uint8

// Each run of a handler is told by an EventStarted and, once the storage has it,
// by one of Completed, Failed, Released, Canceled and Lost. The last two are also
// told of jobs that waited in a pool to start. What is left when a pool stops
// ends without an event, and so does a job that no pool had when it was canceled
// or deleted, expired, or was dropped by a full queue: who is to know of those
// looks at the storage ([pawl.QueueStats] counts the canceled ones).
const (
	EventEnqueued    EventType = iota + 1 // stored, by a Queue whose Middleware has Events.Enqueue
	EventStarted                          // a handler was called
	EventCompleted                        // acked
	EventFailed                           // a run failed; the job waits for its next, or EventBuried follows
	EventBuried                           // in the dead-letter queue, after a run here or by a rescue that this pool's sweep made
	EventReleased                         // handed back by a run that started: it snoozed, or the pool stopped
	EventRescued                          // taken back from a dead worker by this pool's sweep
	EventCanceled                         // canceled or deleted by hand while a pool had it: its claim ended before its lease
	EventLost                             // the claim ended before it was settled, for another reason or who knows which
	EventPaused                           // the queue is paused, as the storage's events tell, or seen when the pool counts
	EventResumed                          // and no longer, seen when the pool counts, which paused queues always are
	EventDepth                            // SubscribeOptions.Depth was crossed
	EventDeadLetters                      // SubscribeOptions.DeadLetters was crossed
	eventTypes
)

var eventNames = [eventTypes]string{"", "enqueued", "started", "completed", "failed", "buried", "released", "rescued",
	"canceled", "lost", "paused", "resumed", "depth", "dead_letters"}

func (t EventType) String() string {
	if t >= eventTypes {
		return "invalid"
	}
	return eventNames[t]
}

// MarshalText returns the name of t.
func (t EventType) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// An Event tells what happened. Fields that do not belong to its type are zero.
type Event struct {
	Type     EventType
	At       time.Time
	Queue    string
	ID       pawl.ID
	Kind     string        // of the job; unknown of one that a sweep took back or buried
	Attempt  int           // from Started to Lost
	Duration time.Duration // of the run that ended
	Error    string        // Failed, Buried: why; Released: why, if that is known; at most pawl.MaxErrorText bytes
	Count    int64         // Depth: waiting jobs; DeadLetters: buried ones
	Over     bool          // Depth, DeadLetters: the count is at the limit or above, else below again
}

// Events tell those who subscribe what happens in pools: in those whose Options
// name them, of which there may be several. The zero value is ready to use.
//
// An event is a report of something done, for metrics, displays and tests.
// Nothing waits for those who read: when the buffer of a subscription is full,
// events are dropped and counted. A pool sees what it does itself; other
// processes have events of their own. An event does not name its pool: pools on
// storages that have queues of the same name want Events of their own.
type Events struct {
	mu   sync.Mutex
	subs atomic.Pointer[[]*Subscription] // replaced under mu
}

// SubscribeOptions narrow a subscription. The zero value of each field is a
// default itself; nil SubscribeOptions are all zero.
type SubscribeOptions struct {
	Types  []EventType // those wanted; none means all; of unknown ones there are no events
	Buffer int         // how many may wait to be read; 0 means 1,024

	// Depth and DeadLetters, if positive, make an event of each time that a
	// queue comes to have that many waiting (ready or scheduled), or buried,
	// jobs, and of each time that it has fewer again, as pools see it when they
	// count: as often as Options.CountEvery says, else every 15 s. One that the
	// buffer has no room for is not dropped, but told by a later count.
	Depth, DeadLetters int64
}

const defaultBuffer = 1024

// A Subscription is a stream of events. Its methods are safe for concurrent use.
type Subscription struct {
	events  *Events
	opts    SubscribeOptions
	types   uint32 // a bit for each wanted
	c       chan Event
	closed  chan struct{}
	dropped [eventTypes]atomic.Int64
	over    map[string][2]bool // by queue: Depth, DeadLetters; guarded by events.mu
}

// Subscribe begins a subscription, which should be closed in the end.
func (e *Events) Subscribe(o *SubscribeOptions) *Subscription {
	s := &Subscription{events: e, closed: make(chan struct{}), over: make(map[string][2]bool)}
	if o != nil {
		s.opts = *o
	}
	for _, t := range s.opts.Types {
		s.types |= 1 << t
	}
	if len(s.opts.Types) == 0 {
		s.types = 1<<eventTypes - 1
	}
	if s.opts.Buffer <= 0 {
		s.opts.Buffer = defaultBuffer
	}
	s.c = make(chan Event, s.opts.Buffer)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.set(append(slices.Clone(e.all()), s))
	return s
}

// Close ends the subscription. What waits can still be read.
func (s *Subscription) Close() {
	s.events.mu.Lock()
	defer s.events.mu.Unlock()
	rest := slices.DeleteFunc(slices.Clone(s.events.all()), func(o *Subscription) bool { return o == s })
	if len(rest) < len(s.events.all()) {
		s.events.set(rest)
		close(s.closed)
	}
}

// Next returns the next event, when there is one. When none waits it returns
// pawl.ErrClosed after Close, or ctx's error when ctx ends.
func (s *Subscription) Next(ctx context.Context) (Event, error) {
	var over error
	select {
	case e := <-s.c:
		return e, nil
	case <-s.closed:
		over = pawl.ErrClosed
	case <-ctx.Done():
		over = ctx.Err()
	}
	select { // the choice above is made by chance
	case e := <-s.c:
		return e, nil
	default:
		return Event{}, over
	}
}

// Dropped returns how many events of each type were dropped because the buffer
// was full.
func (s *Subscription) Dropped() map[EventType]int64 {
	all := make(map[EventType]int64)
	for t := range s.dropped {
		if n := s.dropped[t].Load(); n > 0 {
			all[EventType(t)] = n
		}
	}
	return all
}

// Enqueue is a [pawl.EnqueueMiddleware] that makes an EventEnqueued of each job
// stored. An enqueue in a transaction is told when it returns, before a commit
// that may not come.
func (e *Events) Enqueue(next pawl.EnqueueFunc) pawl.EnqueueFunc {
	return func(ctx context.Context, reqs []*pawl.Request) ([]pawl.Receipt, error) {
		receipts, err := next(ctx, reqs)
		if err != nil {
			return receipts, err
		}
		for i, r := range receipts {
			if (r.Status == pawl.Stored || r.Status == pawl.Replaced) && e.wanted(EventEnqueued) {
				e.publish(Event{Type: EventEnqueued, At: time.Now(), Queue: r.Queue, ID: r.ID, Kind: reqs[i].Kind})
			}
		}
		return receipts, nil
	}
}

func (e *Events) all() []*Subscription {
	if subs := e.subs.Load(); subs != nil {
		return *subs
	}
	return nil
}

func (e *Events) set(subs []*Subscription) { e.subs.Store(&subs) }

// wanted reports whether there is anyone to tell who has room. If not, the event
// is counted as dropped, before it has cost anything. A nil e has nobody.
func (e *Events) wanted(t EventType) bool {
	if e == nil {
		return false
	}
	subs := e.all()
	for _, s := range subs {
		if s.wants(t) && len(s.c) < cap(s.c) {
			return true
		}
	}
	for _, s := range subs {
		if s.wants(t) {
			s.dropped[t].Add(1)
		}
	}
	return false
}

// follows reports whether there is anyone to tell of one of the types. A nil e
// has nobody.
func (e *Events) follows(types ...EventType) bool {
	return e != nil && slices.ContainsFunc(e.all(), func(s *Subscription) bool { return slices.ContainsFunc(types, s.wants) })
}

// counts reports whether there is a limit to watch. A nil e has none.
func (e *Events) counts() bool {
	return e != nil && slices.ContainsFunc(e.all(), func(s *Subscription) bool {
		return s.opts.Depth > 0 && s.wants(EventDepth) || s.opts.DeadLetters > 0 && s.wants(EventDeadLetters)
	})
}

// publish tells an event to all who want its type.
func (e *Events) publish(event Event) {
	for _, s := range e.all() {
		if s.wants(event.Type) && !s.tell(event) {
			s.dropped[event.Type].Add(1)
		}
	}
}

func (s *Subscription) wants(t EventType) bool { return s.types&(1<<t) != 0 }

// tell reports whether there was room for the event.
func (s *Subscription) tell(event Event) bool {
	select {
	case s.c <- event:
		return true
	default:
		return false
	}
}

// crossed tells which limits the counts have crossed since the last ones.
func (e *Events) crossed(at time.Time, counts []pawl.QueueStats) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.all() {
		for _, c := range counts {
			s.crossed(Event{Type: EventDepth, At: at, Queue: c.Queue, Count: c.Ready + c.Scheduled}, 0, s.opts.Depth)
			s.crossed(Event{Type: EventDeadLetters, At: at, Queue: c.Queue, Count: c.Buried}, 1, s.opts.DeadLetters)
		}
	}
}

func (s *Subscription) crossed(event Event, which int, limit int64) {
	event.Over = limit > 0 && event.Count >= limit
	over := s.over[event.Queue]
	if over[which] == event.Over || !s.wants(event.Type) || !s.tell(event) {
		return
	}
	over[which] = event.Over
	s.over[event.Queue] = over
}

// tellEvent tells what happened to a run. It is called with mu held.
func (p *Pool) tellEvent(t EventType, r *run) {
	if !p.opts.Events.wanted(t) {
		return
	}
	event := Event{Type: t, At: time.Now(), Queue: r.ref.Queue, ID: r.ref.ID, Kind: r.kindName, Attempt: r.job.Attempt}
	if t != EventStarted && r.ran {
		event.Duration = r.took
	}
	switch t {
	case EventFailed, EventBuried:
		event.Error = excerpt(r.outcome.Error)
	case EventReleased:
		event.Error = r.why
	}
	p.opts.Events.publish(event)
}

// tellReleased tells that a run has handed its job back, not that one did which
// never started.
func (p *Pool) tellReleased(r *run) {
	if r.ran {
		p.tellEvent(EventReleased, r)
	}
}

// excerpt returns what records hold of an error text, without keeping all of it
// in memory.
func excerpt(s string) string {
	if len(s) <= pawl.MaxErrorText {
		return text.Clean(s, pawl.MaxErrorText)
	}
	return strings.Clone(text.Clean(s, pawl.MaxErrorText))
}

// tellSwept tells of jobs that a sweep took from dead workers, and why.
func (p *Pool) tellSwept(t EventType, refs []pawl.Ref, why string) {
	for _, ref := range refs {
		if p.opts.Events.wanted(t) {
			p.opts.Events.publish(Event{Type: t, At: time.Now(), Queue: ref.Queue, ID: ref.ID, Error: why})
		}
	}
}

// wall returns the time of t by the clock as it is now: it may have been set since
// the pool was made.
func (p *Pool) wall(t instant) time.Time { return time.Now().Add(t.sub(p.now())) }
