package storagetest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pawlq/pawl"
)

func listRules() []testCase {
	return []testCase{
		{
			name: "list order",
			says: "List returns jobs queue by queue in order of name, in each state by state in the order of States, and within a state " +
				"in its own order: Ready as claimed, Scheduled by RunAt, Running by claim, final ones by FinishedAt.",
			run: listOrder,
		},
		{
			name: "list pages",
			says: "A job that does not move while pages are read is seen exactly once, whatever the size of the pages and the filter.",
			run:  listPages,
		},
		{
			name: "list while jobs move",
			says: "A job that does not move while pages are read is seen exactly once, also while others move, come and go.",
			run:  listMoving,
		},
		{
			name: "list filters",
			says: "A Filter selects jobs by queue, kind, states, unique key, worker and time of creation, alone and together; zero fields match all.",
			run:  listFilters,
		},
		{
			name: "list refuses a corrupt cursor",
			says: "A cursor that List did not return gives ErrInvalid.",
			run:  listCorrupt,
		},
		{
			name: "list does not fall for names",
			says: "A Cursor that somebody has made up, or a name that no queue can have, gives ErrInvalid, or jobs that match the filter.",
			run:  listHostile,
		},
		{
			name: "list without payloads",
			says: "Payload and Result are read only when asked for.",
			run:  listPayloads,
		},
		{
			name: "list pages are bounded in bytes",
			says: "With Payloads a page ends when it holds MaxPageBytes.",
			run:  listBytes,
		},
		{
			name: "get",
			says: "Get returns the jobs with the IDs, nil where there is none. An empty queue searches all queues.",
			run:  listGet,
		},
		{
			name: "get of many",
			says: "Get returns up to MaxStep jobs with the IDs, in their order, nil where there is none.",
			run:  listGetMany,
		},
		{
			name: "more IDs than jobs",
			says: "Get and Change take up to MaxStep IDs, however few of them there are, and answer for each in order.",
			run:  listMoreIDs,
		},
	}
}

// crowd fills three queues with jobs of all states, several of which tie.
func (w *world) crowd() {
	w.Helper()
	p := newPair(w)
	p.crowd()
}

func (p *pair) crowd() {
	p.Helper()
	for _, queue := range []string{"b", queueA, "a.b"} {
		for i := range 4 {
			for _, v := range []pawl.Verb{pawl.Ack, pawl.Bury, pawl.Nack} {
				p.crowdOne(queue, pawl.Outcome{Verb: v, Delay: time.Duration(i) * time.Hour})
				p.pass(time.Duration(i%2) * time.Second)
			}
			r := pawl.Request{Queue: queue, Priority: i % 3, UniqueKey: fmt.Sprintf("key %d", i), Payload: []byte("p")}
			ready := p.add(r)
			r.UniqueKey, r.Delay = "", time.Duration(3-i)*time.Hour
			p.add(r)
			r.Kind, r.Delay = "other", 0
			p.add(r)
			p.change(pawl.Change{Verb: pawl.Cancel, Queue: queue, IDs: []pawl.ID{ready}})
		}
		for i := range 4 {
			spec := asking(queue, 1)
			spec.Worker = fmt.Sprintf("worker-%d", i)
			p.claim(spec)
			p.pass(time.Duration(i%2) * time.Second)
		}
	}
	p.verify("a crowd of jobs")
}

// crowdOne stores a job and settles it.
func (p *pair) crowdOne(queue string, o pawl.Outcome) {
	p.Helper()
	id := p.add(pawl.Request{Queue: queue, Priority: -1000})
	p.claim(asking(queue, 1))
	o.Ref = p.m.jobs[id].Ref
	p.settle(o)
}

func listOrder(w *world) {
	p := newPair(w)
	p.crowd() // compares the order of the list
	jobs := w.list(pawl.ListSpec{Limit: pawl.MaxStep})
	if !slices.IsSortedFunc(jobs, func(a, b *pawl.Job) int { return strings.Compare(a.Queue, b.Queue) }) {
		w.Fatalf("queues are not in order of name")
	}
	ready := w.list(pawl.ListSpec{Limit: pawl.MaxStep, Filter: pawl.Filter{Queue: queueA, States: []pawl.State{pawl.Ready}}})
	w.same("ready jobs as claimed", w.byPart(w.claim(len(ready))), w.byPart(ready))
}

func listPages(w *world) {
	w.crowd()
	for _, f := range []pawl.Filter{
		{}, {Queue: queueA}, {Kind: "other"}, {States: []pawl.State{pawl.Buried, pawl.Ready}}, {WorkerID: worker},
		{Queue: "b", States: []pawl.State{pawl.Running}}, {CreatedFrom: Epoch.Add(3 * time.Second)},
	} {
		whole := idsOf(w.list(pawl.ListSpec{Filter: f, Limit: pawl.MaxStep}))
		if len(whole) == 0 {
			w.Fatalf("filter %+v matches nothing", f)
		}
		for _, limit := range []int{1, 2, 7, len(whole)} {
			w.same(fmt.Sprintf("jobs listed in pages of %d with filter %+v", limit, f), idsOf(w.list(pawl.ListSpec{Filter: f, Limit: limit})), whole)
		}
	}
}

func listMoving(w *world) {
	stay := w.addN(20, pawl.Request{Payload: []byte("stay")})
	move := w.addN(20, pawl.Request{Delay: time.Hour})
	seen := map[pawl.ID]int{}
	spec := pawl.ListSpec{Limit: 3, Filter: pawl.Filter{Queue: queueA}}
	for i := range 100 {
		page, err := w.s.List(w.ctx, spec)
		w.ok(err)
		for _, j := range page.Jobs {
			seen[j.ID]++
		}
		if spec.Cursor = page.Next; spec.Cursor == "" {
			break
		}
		if i < len(move) {
			w.changed([]pawl.ChangeVerb{pawl.Delete, pawl.Cancel, pawl.Reschedule}[i%3], move[i])
			w.add(pawl.Request{Priority: -5})
		}
	}
	for _, id := range stay {
		if seen[id] != 1 {
			w.Fatalf("a job that did not move was seen %d times", seen[id])
		}
	}
}

func listFilters(w *world) {
	p := newPair(w)
	p.crowd()
	mid := Epoch.Add(5 * time.Second)
	for _, f := range []pawl.Filter{
		{Queue: queueA}, {Queue: "a.b"}, {Queue: "none"}, {Kind: "other"}, {Kind: "none"},
		{UniqueKey: "key 2"}, {UniqueKey: "key"}, {UniqueKey: "KEY 2"}, {WorkerID: worker}, {WorkerID: "worker-3"},
		{CreatedFrom: mid}, {CreatedBefore: mid}, {CreatedFrom: mid, CreatedBefore: mid.Add(time.Second)},
		{CreatedFrom: Epoch, CreatedBefore: Epoch.Add(time.Microsecond)},
		{Queue: "b", Kind: "other", States: []pawl.State{pawl.Running, pawl.Ready}},
		{Queue: queueA, WorkerID: worker, States: []pawl.State{pawl.Buried}, CreatedFrom: mid},
		{States: []pawl.State{pawl.Canceled, pawl.Scheduled}}, {States: pawl.States()},
		{Queue: queueA, UniqueKey: "key 1", Kind: "kind", States: []pawl.State{pawl.Canceled}},
	} {
		p.listed(fmt.Sprintf("filter %+v", f), w.list(pawl.ListSpec{Filter: f, Limit: 5, Payloads: true}), p.m.list(f))
	}
}

func listCorrupt(w *world) {
	w.crowd()
	page, err := w.s.List(w.ctx, pawl.ListSpec{Limit: 2})
	w.ok(err)
	if page.Next == "" {
		w.Fatalf("a page of 2 of many jobs has no Next")
	}
	for _, cursor := range []string{"x", "\x00\xff", page.Next[:len(page.Next)/2], strings.Repeat("A", 5000)} {
		if _, err := w.s.List(w.ctx, pawl.ListSpec{Limit: 2, Cursor: cursor}); !errors.Is(err, pawl.ErrInvalid) {
			w.Fatalf("cursor %.20q: error is %v, want ErrInvalid", cursor, err)
		}
	}
}

// hostile are queue names of somebody who wants to see other queues.
var hostile = []string{
	"x' OR queue='a", "x'", `x" OR "1"="1`, "x') OR 1=1 -- ", "a ", "a#0", "a}b", "{a}", "*", "%", "\\", "'",
}

// listHostile asks for names that no queue can have, by the filter, by Count,
// and by cursors in which the name of a queue was replaced.
func listHostile(w *world) {
	w.addN(3, pawl.Request{})
	page, err := w.s.List(w.ctx, pawl.ListSpec{Filter: pawl.Filter{Queue: queueA}, Limit: 1})
	w.ok(err)
	for _, name := range hostile {
		for _, cursor := range []string{"", forged(page.Next, queueA, name)} {
			got, err := w.s.List(w.ctx, pawl.ListSpec{Filter: pawl.Filter{Queue: name}, Limit: 10, Cursor: cursor})
			if len(got.Jobs) > 0 || err != nil && !errors.Is(err, pawl.ErrInvalid) {
				w.Fatalf("List of queue %q, cursor %q: %d jobs, error %v", name, cursor, len(got.Jobs), err)
			}
		}
		counts, err := w.s.Count(w.ctx, name)
		if err != nil && !errors.Is(err, pawl.ErrInvalid) {
			w.Fatalf("Count of queue %q: error %v", name, err)
		}
		for _, c := range counts {
			if c.Ready > 0 {
				w.Fatalf("Count of queue %q: %+v", name, c)
			}
		}
	}
}

// forged is a cursor with another queue in it, if it is one that can be read.
func forged(cursor, queue, name string) string {
	raw, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil {
		return cursor
	}
	quoted := func(s string) []byte { text, _ := json.Marshal(s); return text }
	raw = bytes.Replace(raw, quoted(queue), quoted(name), 1)
	return base64.RawURLEncoding.EncodeToString(raw)
}

func listPayloads(w *world) {
	w.add(pawl.Request{Payload: []byte("payload"), Meta: map[string]string{"m": "1"}})
	j := w.claimOne()
	w.settled(pawl.Outcome{Ref: j.Ref, Verb: pawl.Ack, Result: []byte("result")})
	for _, asked := range []bool{true, false} {
		j := w.list(pawl.ListSpec{Limit: 1, Payloads: asked})[0]
		if (len(j.Payload) > 0) != asked || (len(j.Result) > 0) != asked || j.Meta["m"] != "1" {
			w.Fatalf("Payloads %v: payload %q, result %q, meta %v", asked, j.Payload, j.Result, j.Meta)
		}
	}
}

func listBytes(w *world) {
	const n, size = 20, 1 << 20
	for i := range n {
		w.add(pawl.Request{Payload: slices.Repeat([]byte{byte(i)}, size)})
	}
	spec := pawl.ListSpec{Limit: pawl.MaxStep, Payloads: true}
	total := 0
	for pages := 1; ; pages++ {
		page, err := w.s.List(w.ctx, spec)
		w.ok(err)
		bytes := 0
		for _, j := range page.Jobs {
			bytes += len(j.Payload)
		}
		if bytes > pawl.MaxPageBytes+size {
			w.Fatalf("a page holds %d bytes", bytes)
		}
		total += len(page.Jobs)
		if spec.Cursor = page.Next; spec.Cursor == "" {
			if total != n || pages < 2 {
				w.Fatalf("%d jobs in %d pages, want %d in at least 2", total, pages, n)
			}
			break
		}
		if pages > n {
			w.Fatalf("pages do not end")
		}
	}
	if jobs := w.list(pawl.ListSpec{Limit: pawl.MaxStep}); len(jobs) != n {
		w.Fatalf("%d jobs without payloads, want %d", len(jobs), n)
	}
}

func listGet(w *world) {
	a, b := w.add(pawl.Request{Payload: []byte("a")}), w.add(pawl.Request{Queue: "b"})
	missing := newID()
	get := func(queue string, want ...pawl.ID) {
		w.Helper()
		jobs, err := w.s.Get(w.ctx, queue, b, missing, a, a)
		w.ok(err)
		got := make([]pawl.ID, len(jobs))
		for i, j := range jobs {
			if j != nil {
				got[i] = j.ID
			}
		}
		w.same("jobs of queue "+queue, got, want)
	}
	get("", b, pawl.ID{}, a, a)
	get(queueA, pawl.ID{}, pawl.ID{}, a, a)
	get("none", pawl.ID{}, pawl.ID{}, pawl.ID{}, pawl.ID{})
	jobs, err := w.s.Get(w.ctx, queueA)
	w.ok(err)
	w.same("jobs for no IDs", jobs, []*pawl.Job{})
	if got := string(w.job(a).Payload); got != "a" {
		w.Fatalf("payload is %q, want a", got)
	}
}

// listGetMany asks for as many jobs as one call may, of two queues, from the
// last to the first, every seventh of them missing.
func listGetMany(w *world) {
	a := w.addN(pawl.MaxStep/2, pawl.Request{Payload: []byte("a")})
	b := w.addN(pawl.MaxStep/2, pawl.Request{Queue: "b", Payload: []byte("b")})
	ids := slices.Concat(a, b)
	slices.Reverse(ids)
	for i := 0; i < len(ids); i += 7 {
		ids[i] = newID()
	}
	for _, queue := range []string{"", queueA, "b"} {
		jobs, err := w.s.Get(w.ctx, queue, ids...)
		w.ok(err)
		if len(jobs) != len(ids) {
			w.Fatalf("Get of %d IDs returned %d entries", len(ids), len(jobs))
		}
		for i, j := range jobs {
			of := map[bool]string{true: "b", false: queueA}[i < len(b)]
			if there := i%7 != 0 && in(queue, of); there != (j != nil) {
				w.Fatalf("queue %q, entry %d of %d: job is there: %v, want %v", queue, i, len(ids), j != nil, there)
			}
			if j != nil && (j.ID != ids[i] || j.Queue != of || string(j.Payload) != of) {
				w.Fatalf("queue %q, entry %d: job %v of queue %s, payload %q; want %v of %s", queue, i, j.ID, j.Queue, j.Payload, ids[i], of)
			}
		}
	}
}

func listMoreIDs(w *world) {
	ids := make([]pawl.ID, pawl.MaxStep)
	for i := range ids {
		ids[i] = newID()
	}
	ids[300], ids[999] = w.add(pawl.Request{}), w.add(pawl.Request{})
	jobs, err := w.s.Get(w.ctx, queueA, ids...)
	w.ok(err)
	want := make([]pawl.Changed, len(ids))
	for i, j := range jobs {
		want[i] = pawl.Changed{ID: ids[i], Status: pawl.NotFound}
		if there := i == 300 || i == 999; there != (j != nil) {
			w.Fatalf("Get: entry %d: job is there: %v, want %v", i, j != nil, there)
		}
	}
	for _, i := range []int{300, 999} {
		want[i].Status, want[i].Before = pawl.Done, pawl.Ready
	}
	w.same("results of cancel", w.change(pawl.Change{Verb: pawl.Cancel, Queue: queueA, IDs: ids}), want)
	want[300].Before, want[999].Before = pawl.Canceled, pawl.Canceled
	w.same("results of delete", w.change(pawl.Change{Verb: pawl.Delete, IDs: ids}), want)
}
