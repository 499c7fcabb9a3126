package storagetest

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"github.com/pawlq/pawl"
)

func recordRules() []testCase {
	return []testCase{
		{
			name: "payload comes back byte for byte",
			says: "Payload is opaque and comes back byte for byte; so does Result.",
			run:  recordBytes,
		},
		{
			name: "names",
			says: "Queues and kinds are 1 to 200 letters, digits, '_', '-', '.' or ':', and differ if any byte does.",
			run:  recordNames,
		},
		{
			name: "texts",
			says: "Meta, unique keys, worker names, error texts and progress are UTF-8 and come back as they were.",
			run:  recordTexts,
		},
		{
			name: "extremes",
			says: "Fields at the limits of the contract are kept as they are.",
			run:  recordExtremes,
		},
		{
			name: "times are UTC and kept to the microsecond",
			says: "Times are UTC and kept to the microsecond.",
			run:  recordTimes,
		},
		{
			name: "no aliasing",
			says: "A storage keeps no reference to its arguments and gives none to its own memory; requests are not changed.",
			run:  recordAliasing,
		},
	}
}

func recordBytes(w *world) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	for _, payload := range [][]byte{
		nil, {}, {0}, all, []byte("\xff\xfe"), []byte("null"), []byte(`{"a": 1}`), []byte("'; DROP TABLE"),
		bytes.Repeat(all, 4), bytes.Repeat(all, 4096), // 1 KiB, 1 MiB
	} {
		id := w.add(pawl.Request{Payload: payload})
		j := w.claimOne()
		if !bytes.Equal(j.Payload, payload) {
			w.Fatalf("Claim: a payload of %d bytes came back as %d other bytes", len(payload), len(j.Payload))
		}
		w.settled(pawl.Outcome{Ref: j.Ref, Verb: pawl.Ack, Result: payload})
		if j := w.job(id); !bytes.Equal(j.Payload, payload) || !bytes.Equal(j.Result, payload) {
			w.Fatalf("Get: a payload and result of %d bytes came back as %d and %d", len(payload), len(j.Payload), len(j.Result))
		}
	}
}

func recordNames(w *world) {
	const alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:"
	names := []string{alphabet, strings.Repeat("q", pawl.MaxNameLen), strings.Repeat("q", pawl.MaxNameLen-1) + "r"}
	for _, c := range alphabet {
		names = append(names, string(c))
	}
	for _, name := range names {
		w.add(pawl.Request{Queue: name, Kind: name})
	}
	for _, name := range names {
		jobs := w.claimBy(asking(name, 10))
		if len(jobs) != 1 || jobs[0].Queue != name || jobs[0].Kind != name {
			w.Fatalf("queue %q: claimed %d jobs", name, len(jobs))
		}
		listed := w.list(pawl.ListSpec{Limit: 10, Filter: pawl.Filter{Queue: name, Kind: name}})
		w.same("jobs listed of queue "+name, idsOf(listed), idsOf(jobs))
	}
	all, err := w.s.Count(w.ctx)
	w.ok(err)
	if len(all) != len(names) {
		w.Fatalf("%d queues are known, want %d", len(all), len(names))
	}
}

func recordTexts(w *world) {
	texts := []string{
		"plain", "ünïcödé 漢字 🐾", "quote ' \" ` \\ %s %_", "right\u202eleft", "a\u0301 vs \u00e1", "null", " spaces ", "-- ;", "{}[]",
	}
	for i, text := range texts {
		meta := map[string]string{text: text, "": "empty key", "empty": "", fmt.Sprint(i): "\n\t"}
		id := w.add(pawl.Request{Meta: meta, UniqueKey: text})
		spec := asking(queueA, 1)
		spec.Worker = text
		j := w.claimBy(spec)[0]
		p := &pawl.Progress{Stage: text, Message: text, Counters: map[string]int64{text: 1}}
		w.extend(pawl.Renewal{Ref: j.Ref, Lease: lease, Progress: p})
		w.settled(pawl.Outcome{Ref: j.Ref, Verb: pawl.Bury, Error: text + "\n", Stack: "\t" + text})
		j = w.job(id)
		w.same("meta", j.Meta, meta)
		w.same("unique key", j.UniqueKey, text)
		want := *p
		want.At = w.now()
		w.same("progress", j.Progress, &want)
		w.same("failures", j.Failures, []pawl.Failure{{At: w.now(), Attempt: 1, WorkerID: text, Error: text + "\n", Stack: "\t" + text}})
		w.same("jobs listed by key and worker", idsOf(w.list(pawl.ListSpec{
			Limit: 10, Filter: pawl.Filter{UniqueKey: text, WorkerID: text},
		})), []pawl.ID{id})
	}
}

func recordExtremes(w *world) {
	meta := map[string]string{strings.Repeat("k", 100): strings.Repeat("v", pawl.MaxMetaSize-100)}
	far := w.now().Add(90 * 365 * 24 * time.Hour)
	reqs := complete(
		pawl.Request{
			Priority: -pawl.MaxPriority, RunAt: far, StartBefore: far.Add(time.Hour), Retention: pawl.MaxAhead, Lease: pawl.MaxLease,
			Timeout: pawl.MaxAhead, MaxAttempts: 1 << 30, MaxRescues: 1 << 30, Meta: meta,
			UniqueKey: strings.Repeat("é", pawl.MaxKeyLen/2), UniqueMode: pawl.UniqueUntilWindow, UniqueWindow: pawl.MaxAhead,
		},
		pawl.Request{
			Priority: pawl.MaxPriority, Delay: pawl.MaxAhead, Retention: time.Microsecond, Lease: pawl.MinLease,
			Timeout: pawl.NoTimeout, MaxAttempts: 1, MaxRescues: pawl.NoRescues,
			UniqueKey: strings.Repeat("k", pawl.MaxKeyLen), UniqueMode: pawl.UniqueUntilWindow, UniqueWindow: time.Microsecond,
		},
	)
	_, err := w.s.Enqueue(w.ctx, reqs)
	w.ok(err)
	for _, q := range reqs {
		w.same("the job", w.job(q.ID), &newRecord(q, 0, w.now()).Job)
	}
	w.sweep()
	w.clock.Set(far)
	w.same("claimed in the far future", idsOf(w.claim(2)), []pawl.ID{reqs[0].ID})
}

func recordTimes(w *world) {
	w.clock.Advance(123456789 * time.Nanosecond)
	floor := w.now().Truncate(time.Microsecond)
	zone := time.FixedZone("zone", -5*3600)
	id := w.add(pawl.Request{StartBefore: floor.Add(time.Hour).In(zone)})
	at := floor.Add(123457 * time.Microsecond)
	later := w.add(pawl.Request{RunAt: at.In(zone)})
	if got := w.job(later).RunAt; !got.Equal(at) {
		w.Fatalf("RunAt is %v, want %v", got, at)
	}
	ref := w.claimOne().Ref
	w.extend(pawl.Renewal{Ref: ref, Lease: lease, Progress: &pawl.Progress{}})
	w.settled(pawl.Outcome{Ref: ref, Verb: pawl.Bury})
	j := w.job(id)
	for what, t := range map[string]time.Time{
		"RunAt": j.RunAt, "StartBefore": j.StartBefore, "CreatedAt": j.CreatedAt, "StartedAt": j.StartedAt,
		"ClaimedAt": j.ClaimedAt, "FinishedAt": j.FinishedAt, "Failures.At": j.Failures[0].At, "Progress.At": j.Progress.At,
	} {
		if t.Location() != time.UTC || !t.Equal(t.Truncate(time.Microsecond)) {
			w.Fatalf("%s is %v: not UTC, or finer than a microsecond", what, t)
		}
		if d := floor.Sub(t).Abs(); what != "StartBefore" && d > time.Microsecond {
			w.Fatalf("%s is %v, want %v", what, t, floor)
		}
	}
	if !j.LeaseUntil.IsZero() || !w.job(later).FinishedAt.IsZero() {
		w.Fatalf("times that are not set are not zero: %v, %v", j.LeaseUntil, w.job(later).FinishedAt)
	}
}

func recordAliasing(w *world) {
	q := complete(pawl.Request{Payload: []byte("payload"), Meta: map[string]string{"k": "v"}, RunAt: w.now().Add(-time.Hour)})[0]
	before := *q
	_, err := w.s.Enqueue(w.ctx, []*pawl.Request{q})
	w.ok(err)
	w.same("the request", *q, before)
	q.Payload[0], q.Meta["k"], q.Kind = 'X', "X", "X"

	spoil := func(j *pawl.Job) {
		for _, b := range [][]byte{j.Payload, j.Result} {
			for i := range b {
				b[i] = 'X'
			}
		}
		for k := range j.Meta {
			j.Meta[k] = "X"
		}
		for i := range j.Failures {
			j.Failures[i].Error = "X"
		}
		if j.Progress != nil {
			j.Progress.Percent, j.Progress.Counters["c"] = -1, -1
		}
		j.State, j.Kind, j.Attempt = pawl.Canceled, "X", 99
	}
	j := w.claimOne()
	ref := j.Ref
	spoil(j)
	p := &pawl.Progress{Percent: 5, Counters: map[string]int64{"c": 1}}
	w.extend(pawl.Renewal{Ref: ref, Lease: lease, Progress: p})
	p.Percent, p.Counters["c"] = -1, -1
	w.settled(pawl.Outcome{Ref: ref, Verb: pawl.Nack, Error: "e"})
	spoil(w.job(q.ID))
	j = w.claimOne()
	ref = j.Ref
	spoil(j)
	w.extend(pawl.Renewal{Ref: ref, Lease: lease, Progress: &pawl.Progress{Percent: 7, Counters: map[string]int64{"c": 3}}})
	spoil(w.job(q.ID))
	result := []byte("result")
	w.settled(pawl.Outcome{Ref: ref, Verb: pawl.Ack, Result: result})
	result[0] = 'X'
	spoil(w.job(q.ID))
	spoil(w.list(pawl.ListSpec{Limit: 1, Payloads: true})[0])

	j = w.job(q.ID)
	got := fmt.Sprint(j.State, string(j.Payload), string(j.Result), j.Meta, j.Kind, j.Attempt, j.Failures[0].Error, j.Progress.Percent, j.Progress.Counters)
	want := fmt.Sprint(pawl.Completed, "payload", "result", map[string]string{"k": "v"}, "kind", 2, "e", 7.0, map[string]int64{"c": 3})
	if got != want {
		w.Fatalf("the record is %s, want %s", got, want)
	}
}
