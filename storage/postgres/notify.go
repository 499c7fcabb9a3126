package postgres

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawlq/pawl"
)

// Limits of telling other processes.
const (
	// notifyEvery bounds how often a process sends NOTIFY, whose commits take
	// turns on the whole server. The first one goes out at once.
	notifyEvery = 5 * time.Millisecond
	// notifyTimeout bounds one attempt to send, lastWord the one of Close.
	notifyTimeout = 5 * time.Second
	lastWord      = time.Second
	notifyMaxWait = time.Second // between attempts while the server can't be reached
	// maxFacts is how many facts may wait to be sent. What is beyond is found by
	// heartbeats.
	maxFacts = 4096
	// echoTime is how long after a NOTIFY of its own a process expects to hear it.
	echoTime = time.Second
	// maxEchoes is how many it expects before it forgets old ones.
	maxEchoes = 256
	// keptEvents is how many rows of pawl_event are kept for others to read.
	keptEvents = 10_000
)

// wakes are the statements of telling and listening.
func (q *statements) wakes(o *Options) {
	q.notify = `SELECT pg_notify(c, '') FROM unnest($1::text[]) AS c`
	// In a transaction of its own, which is worth no wait for the disk either.
	q.notifyAlone = `SELECT set_config('synchronous_commit', 'off', true), pg_notify(c, '') FROM unnest($1::text[]) AS c`
	// One writes at a time, for seq to grow in order of commit. The rows are
	// worth no wait for the disk.
	q.beginEvents = `SELECT set_config('synchronous_commit', 'off', true), pg_advisory_xact_lock($1::bigint)`
	q.addEvents = named(`INSERT INTO public.pawl_event (kind, queue, id, fence)
		SELECT * FROM unnest($1::smallint[], $2::text[], $3::text[]::uuid[], $4::bigint[])`, o)
	// pawl_event_pkey
	q.dropEvents = named(`DELETE FROM public.pawl_event WHERE seq <= (SELECT max(seq) FROM public.pawl_event) - $1::bigint`, o)
	q.xid = `SELECT pg_current_xact_id()::text`
	// Ended is what a new claim would see; whether that was by a commit.
	q.ended = `SELECT x, pg_xact_status(x::xid8) IS DISTINCT FROM 'aborted' FROM unnest($1::text[]) AS x
		WHERE pg_visible_in_snapshot(x::xid8, pg_current_snapshot())`
	q.lastEvent = named(`SELECT coalesce(max(seq), 0) FROM public.pawl_event`, o)
	q.eventsAfter = named(`SELECT seq, kind::int, queue, coalesce(id::text, ''), coalesce(fence, 0)
		FROM public.pawl_event WHERE seq > $1::bigint ORDER BY seq`, o)
}

// channels are where the Store notifies and listens: one says that jobs may be
// claimable, the other that there are new rows in pawl_event.
type channels struct{ ready, facts string }

func newChannels(o *Options) channels {
	ready := fmt.Sprintf("pawl_%016x", uint64(nameHash(o)))
	return channels{ready, ready + "_facts"}
}

// notifier tells other processes, by one NOTIFY about all that has gathered.
type notifier struct {
	s      *Store
	ch     channels
	cancel context.CancelFunc
	done   chan struct{}
	wake   chan struct{}

	mu     sync.Mutex
	ready  bool
	facts  []pawl.Event
	echoes map[sender]time.Time // what this process sent, and when
	inTx   time.Time            // when it last sent in a caller's transaction
}

// sender is a connection, by its process on the server, on a channel.
type sender struct {
	pid     uint32
	channel string
}

// start begins to send; stop ends it.
func (n *notifier) start(s *Store) {
	n.s, n.ch, n.echoes = s, newChannels(s.o), make(map[sender]time.Time)
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
	if e.Kind == pawl.EventReady {
		n.ready = true
	} else if len(n.facts) < maxFacts {
		n.facts = append(n.facts, e)
	}
	n.mu.Unlock()
	n.nudge()
}

func (n *notifier) nudge() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

func (n *notifier) take() (ready bool, facts []pawl.Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	ready, facts = n.ready, n.facts
	n.ready, n.facts = false, nil
	return ready, facts
}

// putBack keeps what could not be sent for the next attempt. Facts that the
// server has refused are left to heartbeats.
func (n *notifier) putBack(ready bool, facts []pawl.Event, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ready = n.ready || ready
	if isOver(err) || !refused(err) {
		n.facts = append(facts, n.facts...)
		n.facts = n.facts[:min(len(n.facts), maxFacts)]
	}
	if n.ready || len(n.facts) > 0 {
		n.nudge()
	}
}

func (n *notifier) loop(ctx context.Context) {
	defer close(n.done)
	for wait := notifyEvery; ; {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.Background(), lastWord)
			defer cancel()
			ready, facts := n.take()
			_ = n.send(last, ready, facts) // a lost one is found by polling
			return
		case <-n.wake:
		}
		ready, facts := n.take()
		err := n.send(ctx, ready, facts)
		if err == nil {
			wait = notifyEvery
		} else {
			wait = min(2*wait, notifyMaxWait)
			n.putBack(ready, facts, err)
		}
		sleep(ctx, wait)
	}
}

// send tells others, on a connection of the pool, for which it waits as long as
// ctx allows.
func (n *notifier) send(ctx context.Context, ready bool, facts []pawl.Event) error {
	if !ready && len(facts) == 0 {
		return nil
	}
	conn, err := n.s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), notifyTimeout)
	defer cancel()
	channels := []string{n.ch.ready, n.ch.facts}
	switch {
	case len(facts) == 0:
		channels = channels[:1]
	case !ready:
		channels = channels[1:]
	}
	pid := conn.Conn().PgConn().PID()
	n.expect(pid, channels)
	if len(facts) == 0 {
		err = native{q: conn}.exec(ctx, n.s.q.notifyAlone, channels)
	} else {
		err = n.sendFacts(ctx, conn, channels, facts)
	}
	if err != nil {
		for _, c := range channels {
			n.isEcho(pid, c)
		}
	}
	return err
}

// sendFacts writes facts where others read them, and drops the oldest.
func (n *notifier) sendFacts(ctx context.Context, conn *pgxpool.Conn, channels []string, facts []pawl.Event) error {
	kinds, queues := make([]int16, len(facts)), make([]string, len(facts))
	ids, fences := make([]*string, len(facts)), make([]*int64, len(facts))
	for i, e := range facts {
		kinds[i], queues[i] = int16(e.Kind), e.Queue
		if e.Kind == pawl.EventEnded {
			id := e.Ref.ID.String()
			ids[i], fences[i] = &id, &e.Ref.Fence
		}
	}
	p := new(pipeline)
	// At a higher level, to drop what another process drops would be a conflict.
	p.exec(n.s.q.begin)
	p.exec(n.s.q.pin)
	p.exec(n.s.q.beginEvents, nameHash(n.s.o)+1) // migrations have the other
	p.exec(n.s.q.addEvents, kinds, queues, ids, fences)
	p.exec(n.s.q.dropEvents, keptEvents)
	p.exec(n.s.q.notify, channels)
	p.exec(n.s.q.commit)
	return conn.SendBatch(ctx, &p.batch).Close()
}

// takeTurn reports whether a caller's transaction may notify: none did lately.
func (n *notifier) takeTurn(now time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if now.Sub(n.inTx) < txNotifyEvery {
		return false
	}
	n.inTx = now
	return true
}

// expect notes that the process will hear what it sends itself.
func (n *notifier) expect(pid uint32, channels []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	if len(n.echoes) >= maxEchoes { // nobody listens here, or connections have gone
		maps.DeleteFunc(n.echoes, func(_ sender, at time.Time) bool { return now.Sub(at) >= echoTime })
	}
	for _, c := range channels {
		n.echoes[sender{pid, c}] = now
	}
}

// isEcho reports whether a notification is one of this process, whose watchers
// know already. It is so only once.
func (n *notifier) isEcho(pid uint32, channel string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	at, ok := n.echoes[sender{pid, channel}]
	delete(n.echoes, sender{pid, channel})
	return ok && time.Since(at) < echoTime
}

// sleep waits for d or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
