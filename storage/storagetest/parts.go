package storagetest

import (
	"cmp"
	"fmt"

	"github.com/pawlq/pawl"
)

// What the contract says of a queue holds for each part of a divided one, see
// [Capabilities]. Between parts nothing is fixed but what List says of priority
// and time. A whole queue is one part, so cases need not know which they have.

// A place is a part of a queue.
type place struct {
	queue string
	part  int
}

// part is in which part of its queue the job of a request is.
func (h Harness) part(q *pawl.Request) int {
	if h.Part == nil {
		return 0
	}
	return h.Part(q)
}

// partOf is in which part of its queue a job is.
func (h Harness) partOf(j *pawl.Job) int {
	return h.part(&pawl.Request{Queue: j.Queue, ID: j.ID, UniqueKey: j.UniqueKey})
}

// byPart are the IDs of jobs of one queue, part by part, in the given order.
func (w *world) byPart(jobs []*pawl.Job) map[int][]pawl.ID {
	parts := map[int][]pawl.ID{}
	for _, j := range jobs {
		part := w.h.partOf(j)
		parts[part] = append(parts[part], j.ID)
	}
	return parts
}

// maxTries finds a part even if there are hundreds.
const maxTries = 10_000

// requests completes requests. In an ordered case all without a key are in the
// part of the key "k".
func (w *world) requests(reqs ...pawl.Request) []*pawl.Request {
	w.Helper()
	completed := complete(reqs...)
	for i, q := range completed {
		if !w.ordered || q.UniqueKey != "" || reqs[i].ID != (pawl.ID{}) {
			continue
		}
		part, tries := w.h.part(&pawl.Request{Queue: q.Queue, UniqueKey: "k"}), 0
		for ; w.h.part(q) != part && tries < maxTries; tries++ {
			q.ID = newID()
		}
		if tries == maxTries {
			w.Fatalf("Part puts no ID in part %d", part)
		}
	}
	return completed
}

// keyBeside returns a unique key that begins with prefix and belongs in the part
// that the job of q is in, so that it is found there under that key too.
func (w *world) keyBeside(q pawl.Request, prefix string) string {
	w.Helper()
	q.Queue = or(q.Queue, queueA)
	part := w.h.part(&q)
	for n := range maxTries {
		if q.UniqueKey = fmt.Sprint(prefix, n); w.h.part(&q) == part {
			return q.UniqueKey
		}
	}
	w.Fatalf("Part puts no key in part %d", part)
	return ""
}

// follow returns records of one queue, which are in order, as a storage may
// return them: got first, as far as the order within each part allows.
func follow(records []*record, got []*pawl.Job) []*record {
	parts := map[int][]*record{}
	for _, r := range records {
		parts[r.part] = append(parts[r.part], r)
	}
	if len(parts) <= 1 {
		return records
	}
	followed := make([]*record, 0, len(records))
	took := map[*record]bool{}
	for _, j := range got {
		for part, rest := range parts {
			if len(rest) > 0 && rest[0].ID == j.ID {
				followed, parts[part] = append(followed, rest[0]), rest[1:]
				took[rest[0]] = true
			}
		}
	}
	for _, r := range records {
		if !took[r] {
			followed = append(followed, r)
		}
	}
	return followed
}

// rank compares two waiting jobs, which may be in different parts.
func (r *record) rank(o *record) int {
	return cmp.Or(r.Priority-o.Priority, r.RunAt.Compare(o.RunAt))
}
