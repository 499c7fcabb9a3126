package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/pawlq/pawl"
)

// maxPromoted bounds the due jobs that a Claim makes ready first. Only if more
// of a queue have become due since the last one, jobs may come out of order.
const maxPromoted = 10_000

// claim looks first without a lock, so that a claim that finds nothing is one
// statement that reads.
func (s *Store) claim(ctx context.Context, spec pawl.ClaimSpec) (c pawl.Claimed, err error) {
	var seen *outlook
	if !spec.Repeat {
		err := s.alone(ctx, func(b *batch) (err error) {
			seen, err = b.look(spec.Queues)
			return err
		})
		if err != nil {
			return c, err
		}
		if !seen.any() {
			return pawl.Claimed{NextDue: seen.nextDue()}, nil
		}
	}
	err = s.inTxFast(ctx, func(b *batch) (err error) {
		l := seen
		seen = nil // if it comes to another try, that looks again
		c, err = b.claim(spec, l)
		return err
	})
	if err != nil {
		return pawl.Claimed{}, err
	}
	return c, nil
}

// claim claims by what was seen a moment ago, or looks if that is nil.
func (b *batch) claim(spec pawl.ClaimSpec, l *outlook) (c pawl.Claimed, err error) {
	if spec.Repeat {
		if c.Jobs, err = b.claimedBy(spec); len(c.Jobs) > 0 || err != nil {
			return c, err
		}
	}
	if l == nil {
		if l, err = b.look(spec.Queues); err != nil {
			return c, err
		}
	} else if b.now == 0 {
		b.now = l.now + time.Since(l.at).Microseconds()
	}
	if l.late {
		if _, err := b.expire(pawl.MaxStep); err != nil {
			return c, err
		}
	}
	promoted, stuck := 0, false
	for i, ask := range spec.Queues {
		n := min(ask.Max, spec.Max-len(c.Jobs))
		if n <= 0 || l.queues[i].paused {
			continue
		}
		if l.queues[i].isDue(b.now) {
			some, err := b.promote(ask.Queue, max(maxPromoted-promoted, pawl.MaxStep))
			if err != nil {
				return c, err
			}
			promoted, stuck = promoted+some, stuck || some == 0
		} else if !l.queues[i].ready {
			continue
		}
		jobs, err := b.claimQueue(ask.Queue, n, l.late, spec)
		if err != nil {
			return c, err
		}
		c.Jobs = append(c.Jobs, jobs...)
	}
	if len(c.Jobs) < spec.Max {
		if promoted > 0 || stuck {
			if l, err = b.look(spec.Queues); err == nil {
				err = b.lookBeyond(l, spec.Queues)
			}
		}
		c.NextDue = l.nextDue()
	}
	return c, err
}

// heldPause is after how many microseconds one should look again for what is due
// but held by an open transaction.
const heldPause = 100_000

// lookBeyond corrects what is expected of queues whose first scheduled job is due
// and was not promoted. If its StartBefore has come, it is none; else others have
// locked it.
func (b *batch) lookBeyond(l *outlook, asks []pawl.QueueAsk) error {
	for i := range l.queues {
		p := &l.queues[i]
		if p.paused || !p.isDue(l.now) {
			continue
		}
		scheduled := func(columns string) *text {
			return b.sql(columns).add(" FROM pawl_job FORCE INDEX (place) WHERE queue = ").name(asks[i].Queue).
				add(" AND state = 1 AND urgency = 0 AND moment ")
		}
		later, err := b.number(scheduled("SELECT MIN(moment)").add("> ").num(l.now))
		if err != nil {
			return err
		}
		held, err := b.number(scheduled("SELECT 1").add("<= ").num(l.now).
			add(" AND (start_before = 0 OR start_before > ").num(l.now).add(") LIMIT 1"))
		if err != nil {
			return err
		}
		if p.scheduled = later; held > 0 {
			p.scheduled = sooner(later, l.now+heldPause)
		}
	}
	return nil
}

// outlook is what a claim can expect.
type outlook struct {
	now    int64
	at     time.Time // when it was seen, by the clock of this process
	late   bool      // a ready job is to be expired
	queues []prospect
}

type prospect struct {
	paused, ready bool
	scheduled     int64 // when the first scheduled job is due; 0 if there is none
}

func (p *prospect) isDue(now int64) bool { return p.scheduled != 0 && p.scheduled <= now }

func (l *outlook) any() bool {
	return slices.ContainsFunc(l.queues, func(p prospect) bool { return !p.paused && (p.ready || p.isDue(l.now)) })
}

// nextDue is how long until the first scheduled job of queues that are not
// paused is due, at least a microsecond; 0 if none is known.
func (l *outlook) nextDue() time.Duration {
	var next int64
	for _, p := range l.queues {
		if !p.paused {
			next = sooner(next, p.scheduled)
		}
	}
	return until(next, l.now)
}

// until is how long it is to a time, at least a microsecond; 0 if it is none.
func until(at, now int64) time.Duration {
	if at == 0 {
		return 0
	}
	return time.Duration(max(at-now, 1)) * time.Microsecond
}

// look reads, for each queue, the first rows of its parts of the index place.
func (b *batch) look(asks []pawl.QueueAsk) (*outlook, error) {
	t := b.sql("")
	for i, ask := range asks {
		if i > 0 {
			t.add(" UNION ALL ")
		}
		b.time(t.add("SELECT ").num(int64(i)).add(" AS n, "))
		t.add(", EXISTS (SELECT 1 FROM pawl_queue WHERE name = ").name(ask.Queue).add(" AND paused = 1)")
		t.add(", EXISTS (SELECT 1 FROM pawl_job FORCE INDEX (place) WHERE queue = ").name(ask.Queue).add(" AND state = 2)")
		t.add(", (SELECT moment FROM pawl_job FORCE INDEX (place) WHERE queue = ").name(ask.Queue)
		t.add(" AND state = 1 AND urgency = 0 ORDER BY moment LIMIT 1)")
		if i == 0 { // of all queues
			b.time(t.add(", EXISTS (SELECT 1 FROM pawl_job FORCE INDEX (wake) WHERE state = 2 AND wake_at <= ")).add(")")
		} else {
			t.add(", 0")
		}
	}
	l := &outlook{queues: make([]prospect, len(asks))}
	seen := 0
	err := b.each(t, func(row scanner) error {
		var (
			i         int
			p         prospect
			scheduled sql.NullInt64
			late      bool
		)
		if err := row.Scan(&i, &l.now, &p.paused, &p.ready, &scheduled, &late); err != nil {
			return err
		}
		l.late = l.late || late
		p.scheduled = scheduled.Int64
		l.queues[i] = p
		seen++
		return nil
	})
	if err == nil && seen < len(asks) {
		err = errNoRow
	}
	b.now, l.at = l.now, time.Now()
	return l, err
}

// promote makes due scheduled jobs of a queue ready, in steps.
func (b *batch) promote(queue string, limit int) (promoted int, err error) {
	for promoted < limit {
		n := min(limit-promoted, pawl.MaxStep)
		t := b.sql("SELECT seq FROM pawl_job FORCE INDEX (place) WHERE queue = ").name(queue)
		t.add(" AND state = 1 AND urgency = 0 AND moment <= ").num(b.now).add(" AND (start_before = 0 OR start_before > ").num(b.now)
		seqs, err := column[int64](b, b.forUpdate(t.add(") ORDER BY moment, seq LIMIT ").num(int64(n))))
		if err != nil {
			return promoted, err
		}
		if err := b.makeReady(seqs); err != nil {
			return promoted, err
		}
		promoted += len(seqs)
		if len(seqs) < n {
			break
		}
	}
	return promoted, nil
}

// makeReady promotes rows that are locked.
func (b *batch) makeReady(seqs []int64) error {
	if len(seqs) == 0 {
		return nil
	}
	slices.Sort(seqs)
	t := b.sql("UPDATE ").seqs(seqs).add(" SET state = 2, urgency = priority, retrying = 0")
	_, err := b.exec(t.add(", wake_at = NULLIF(start_before, 0)"))
	return err
}

// claimQueue claims up to n jobs of a queue.
func (b *batch) claimQueue(queue string, n int, late bool, spec pawl.ClaimSpec) ([]*pawl.Job, error) {
	var found []*record
	var err error
	if b.fast && !late {
		found, err = b.claimFast(queue, n, spec)
	} else {
		found, err = b.claimLocked(queue, n, spec)
	}
	if err != nil {
		return nil, err
	}
	jobs := make([]*pawl.Job, len(found))
	for i, r := range found {
		jobs[i] = r.job()
		jobs[i].Payload = r.payload
	}
	return jobs, nil
}

// claimLocked locks what nobody else has locked, in claim order, and takes that.
func (b *batch) claimLocked(queue string, n int, spec pawl.ClaimSpec) ([]*record, error) {
	t := b.sql("SELECT " + recordColumns + ", payload FROM pawl_job FORCE INDEX (place) WHERE queue = ").name(queue)
	t.add(" AND state = 2 AND (start_before = 0 OR start_before > ").num(b.now)
	t.add(") ORDER BY urgency, moment, seq LIMIT ").num(int64(n))
	found, err := b.withPayloads(b.forUpdate(t))
	if len(found) == 0 || err != nil {
		return nil, err
	}
	fence, err := b.nextFence()
	if err != nil {
		return nil, err
	}
	if _, err := b.exec(b.setRunning(b.sql("UPDATE ").seqs(seqsOf(found)), fence, spec)); err != nil {
		return nil, err
	}
	return found, b.running(found, fence, spec)
}

// nextFence draws a fence. It must come after the jobs were read: then whoever
// claims one of them with a lower fence has changed it since.
func (b *batch) nextFence() (int64, error) {
	res, err := b.result(b.sql("INSERT INTO pawl_fence VALUES (NULL)"))
	if err != nil {
		return 0, err
	}
	return res.LastInsertId()
}

// withPayloads loads records whose payload follows recordColumns.
func (b *batch) withPayloads(t *text) (found []*record, err error) {
	apart := make(map[pawl.ID]*record)
	err = b.each(t, func(row scanner) error {
		r := new(record)
		found = append(found, r)
		err := r.scan(row, &r.payload)
		if r.apart&payloadPart != 0 {
			apart[r.id] = r
		}
		return err
	})
	if len(apart) == 0 || err != nil {
		return found, err
	}
	ids := (&jobs{}).missing(idSet(apart))
	for part := range slices.Chunk(ids, pawl.MaxStep) {
		t := b.sql("SELECT id, data FROM pawl_blob FORCE INDEX (PRIMARY) WHERE part = 1 AND id IN (").ids(part).add(")")
		err := b.each(t, func(row scanner) error {
			var id sql.RawBytes
			var data []byte
			err := row.Scan(&id, &data)
			if r := apart[pawl.ID(id)]; r != nil {
				r.payload = data
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

func idSet(of map[pawl.ID]*record) map[pawl.ID]struct{} {
	ids := make(map[pawl.ID]struct{}, len(of))
	for id := range of {
		ids[id] = struct{}{}
	}
	return ids
}

// setRunning appends what a claim sets in a row.
func (b *batch) setRunning(t *text, fence int64, spec pawl.ClaimSpec) *text {
	t.add(" SET j.state = 3, j.urgency = 0, j.moment = ").num(b.now)
	t.add(", j.claimed_at = ").num(b.now).add(", j.started_at = IF(j.started_at > 0, j.started_at, ").num(b.now)
	t.add("), j.wake_at = IF(j.lease > 0, j.lease, ").num(microseconds(spec.Lease)).add(") + ").num(b.now)
	t.add(", j.fence = ").num(fence).add(", j.token = ").num(spec.Token).add(", j.worker = ").bytes([]byte(spec.Worker))
	return t.add(", j.attempt = j.attempt + 1, j.reason = '', j.progress = NULL, j.held = IF(j.umode = 1, 0, j.held)")
}

// running does in memory what setRunning has done, and gives up the keys of jobs
// that hold them only until they are claimed.
func (b *batch) running(found []*record, fence int64, spec pawl.ClaimSpec) error {
	for _, r := range found {
		if r.umode == pawl.UniqueUntilClaimed {
			r.giveUpKey()
		}
		r.place(pawl.Running, b.now)
		r.claimedAt, r.wakeAt = b.now, b.now+cmp.Or(r.lease, microseconds(spec.Lease))
		r.startedAt = cmp.Or(r.startedAt, b.now)
		r.fence, r.token, r.worker = fence, spec.Token, []byte(spec.Worker)
		r.attempt, r.reason, r.progress = r.attempt+1, "", nil
	}
	return b.dropKeys(found)
}

// claimedBy returns the jobs that an earlier claim with the token has made
// running. The index has the token, so that no other rows are read.
func (b *batch) claimedBy(spec pawl.ClaimSpec) (all []*pawl.Job, err error) {
	for _, ask := range spec.Queues {
		t := b.sql("SELECT " + recordColumns + ", payload FROM pawl_job FORCE INDEX (wake) WHERE state = 3 AND token = ")
		t.num(spec.Token).add(" AND queue = ").name(ask.Queue).add(" ORDER BY priority, run_at, seq LIMIT ").num(pawl.MaxStep)
		found, err := b.withPayloads(t)
		if err != nil {
			return nil, err
		}
		for _, r := range found {
			j := r.job()
			j.Payload = r.payload
			all = append(all, j)
		}
	}
	return all, nil
}

// expire ends waiting jobs whose StartBefore has come.
func (b *batch) expire(limit int) (expired int, err error) {
	var all []*record
	for _, state := range []pawl.State{pawl.Scheduled, pawl.Ready} {
		t := b.locking("SELECT "+recordColumns, "wake").add("state = ").num(int64(state)).add(" AND wake_at <= ").num(b.now)
		t.add(" AND start_before > 0 AND start_before <= ").num(b.now).add(" ORDER BY wake_at LIMIT ").num(int64(limit - len(all)))
		found, err := b.lock(b.forUpdate(t))
		if err != nil {
			return 0, err
		}
		all = append(all, found...)
	}
	for _, r := range all {
		r.finish(pawl.Canceled, pawl.ReasonExpired, b.now)
	}
	return len(all), b.flush(all)
}
