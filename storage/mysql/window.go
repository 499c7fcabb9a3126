package mysql

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/pawlq/pawl"
)

// window spreads claimers that are in each other's way over the next few batches
// of a queue. It is as wide as there are claims of this Store under way, so that a
// single one keeps the order exact, and wider while claims lose candidates to
// other processes.
type window struct {
	mu       sync.Mutex
	underWay int
	width    int // in batches
	streak   int // claims since it was changed
	next     int // which batch of the window is next

	candidates, lost int64 // of all claims
}

const (
	maxWidth = 32
	// patientClaims is how many claims without a loss, for each batch of the
	// width, make the window narrower.
	patientClaims = 8
)

// enter begins a claim, leave ends it.
func (w *window) enter() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.underWay++
}

func (w *window) leave() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.underWay--
}

// offset is where a claim of n jobs begins: those of this Store take turns, those
// of others begin elsewhere.
func (w *window) offset(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if width := max(w.width, w.underWay); width > 1 {
		if w.next++; w.next%width == 0 {
			w.next = rand.IntN(width)
		}
		return w.next % width * n
	}
	return 0
}

// note takes over what became of the candidates of a claim.
func (w *window) note(candidates, lost int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.width, w.streak = max(w.width, 1), w.streak+1
	w.candidates, w.lost = w.candidates+int64(candidates), w.lost+int64(lost)
	switch {
	case 5*lost > candidates:
		w.width, w.streak = min(2*w.width, maxWidth), 0
	case lost > 0:
		w.streak = 0
	case w.streak >= patientClaims*w.width:
		w.width, w.streak = max(w.width/2, 1), 0
	}
}

// maxRounds is how often a claim takes candidates before it locks what nobody else has
// locked: others may be faster each time.
const maxRounds = 2

// claimFast claims up to n jobs of a queue: it reads candidates without locking
// them, and takes those whose version is as it was: the fence of their last claim,
// and the token, which is another one whenever a waiting job is written. No
// candidate is late at b.now.
//
// A claim that has lost some goes on: less than was asked for tells a pool that the
// queue is empty, so it would rest, and leave all to who was faster.
func (b *batch) claimFast(queue string, n int, spec pawl.ClaimSpec) (all []*record, err error) {
	b.s.window.enter()
	defer b.s.window.leave()
	for range maxRounds {
		found, err := b.candidates(queue, n-len(all), b.s.window.offset(n-len(all)))
		if len(found) == 0 || err != nil {
			return all, err
		}
		taken, err := b.takeUnchanged(found, spec)
		if err != nil {
			return nil, err
		}
		if all = append(all, taken...); len(taken) == len(found) {
			return inClaimOrder(all), nil
		}
	}
	rest, err := b.claimLocked(queue, n-len(all), spec)
	return inClaimOrder(append(all, rest...)), err
}

// candidates reads ready jobs. A place behind the last one is as good as the first.
func (b *batch) candidates(queue string, n, offset int) ([]*record, error) {
	t := b.sql("SELECT " + recordColumns + ", payload FROM (SELECT seq AS s FROM pawl_job FORCE INDEX (place) WHERE queue = ").name(queue)
	t.add(" AND state = 2 ORDER BY urgency, moment, seq LIMIT ").num(int64(n)).add(" OFFSET ").num(int64(offset))
	found, err := b.withPayloads(t.add(") AS v STRAIGHT_JOIN pawl_job AS j FORCE INDEX (PRIMARY) ON j.seq = v.s"))
	if err == nil && len(found) < n && offset > 0 {
		return b.candidates(queue, n, 0)
	}
	return found, err
}

// inClaimOrder sorts jobs that were ready.
func inClaimOrder(all []*record) []*record {
	slices.SortFunc(all, func(a, b *record) int {
		return cmp.Or(cmp.Compare(a.priority, b.priority), cmp.Compare(a.runAt, b.runAt), cmp.Compare(a.seq, b.seq))
	})
	return all
}

// takeUnchanged makes those of the candidates running that are as they were read,
// and returns them.
func (b *batch) takeUnchanged(found []*record, spec pawl.ClaimSpec) ([]*record, error) {
	fence, err := b.nextFence()
	if err != nil {
		return nil, err
	}
	bySeq := slices.SortedFunc(slices.Values(found), func(a, b *record) int { return cmp.Compare(a.seq, b.seq) })
	t := b.sql(shortWait + "UPDATE JSON_TABLE('[")
	list(t, bySeq, func(r *record) { t.add("[").num(r.seq).add(",").num(r.fence).add(",").num(r.token).add("]") })
	t.add("]', '$[*]' COLUMNS (s BIGINT PATH '$[0]', f BIGINT PATH '$[1]', t BIGINT PATH '$[2]')) AS v STRAIGHT_JOIN pawl_job AS j")
	t.add(" FORCE INDEX (PRIMARY) ON j.seq = v.s AND j.fence = v.f AND j.token = v.t AND j.state = 2")
	t.add(" AND (j.start_before = 0 OR j.start_before > ")
	n, err := b.execFast(b.setRunning(t.num(b.now).add(")"), fence, spec))
	if err == errSlow {
		b.s.goSlow()
	}
	if err != nil {
		return nil, err
	}
	won := found
	if int(n) < len(found) {
		if won, err = b.won(found, fence); err != nil {
			return nil, err
		}
	}
	b.s.window.note(len(found), len(found)-len(won))
	return won, b.running(won, fence, spec)
}

// won are the candidates that have the fence.
func (b *batch) won(found []*record, fence int64) ([]*record, error) {
	seqs, err := column[int64](b, b.sql("SELECT seq FROM ").seqs(seqsOf(found)).add(" AND j.state = 3 AND j.fence = ").num(fence))
	if err != nil {
		return nil, err
	}
	slices.Sort(seqs)
	return slices.DeleteFunc(slices.Clone(found), func(r *record) bool {
		_, mine := slices.BinarySearch(seqs, r.seq)
		return !mine
	}), nil
}
