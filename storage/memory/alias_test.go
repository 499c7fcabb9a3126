package memory

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/pawlq/pawl"
)

var ignoreUnexported = cmpopts.IgnoreUnexported(pawl.Job{})

// TestNoAliasing hands memory to the store in every way there is, scribbles
// over it afterwards, and over all that the store gives.
func TestNoAliasing(t *testing.T) {
	s, _ := newStore(t)
	r := newRequest(func(r *pawl.Request) {
		r.Payload = []byte("payload")
		r.Meta = map[string]string{"tenant": "a"}
	})
	enqueue(t, s, r, newRequest(func(r *pawl.Request) { r.Payload = []byte("neighbour") }))
	scribble(r.Payload, r.Meta)

	edit := pawl.EditFields{Payload: []byte("edited"), Meta: map[string]string{"tenant": "b"}}
	change(t, s, pawl.Change{Verb: pawl.Edit, IDs: []pawl.ID{r.ID}, Edit: edit})
	scribble(edit.Payload, edit.Meta)

	jobs := claimJobs(t, s, 1)
	settle(t, s, pawl.Outcome{Ref: jobs[0].Ref, Verb: pawl.Nack, Error: "failed"})
	jobs = claimJobs(t, s, 2)
	if len(jobs) != 2 || string(jobs[0].Payload) != "edited" || string(jobs[1].Payload) != "neighbour" {
		t.Fatalf("claimed %q", payloads(jobs))
	}
	_ = append(jobs[0].Payload, "overflow"...)
	if string(jobs[1].Payload) != "neighbour" {
		t.Error("appending to one payload writes into the next")
	}
	j := jobs[0]
	progress := &pawl.Progress{Percent: 5, Counters: map[string]int64{"rows": 5}}
	renewal := pawl.Renewal{Ref: j.Ref, Lease: time.Minute, Progress: progress}
	if lost, err := s.Extend(ctx, []pawl.Renewal{renewal}); err != nil || len(lost) > 0 {
		t.Fatal(lost, err)
	}
	progress.Counters["rows"] = 6
	result := []byte("result")
	settle(t, s, pawl.Outcome{Ref: j.Ref, Verb: pawl.Ack, Result: result})
	scribble(result, nil)

	want := get(t, s, r.ID)
	if string(want.Payload) != "edited" || want.Meta["tenant"] != "b" || string(want.Result) != "result" ||
		want.Progress.Counters["rows"] != 5 || want.Failures[0].Error != "failed" {
		t.Fatalf("the store kept %+v", want)
	}
	for _, given := range []*pawl.Job{j, get(t, s, r.ID), list(t, s)[r.ID]} {
		scribbleJob(given)
		if diff := cmp.Diff(want, get(t, s, r.ID), ignoreUnexported); diff != "" {
			t.Fatalf("writing into a job that the store gave changed the store:\n%s", diff)
		}
	}
}

func list(t *testing.T, s *Store) map[pawl.ID]*pawl.Job {
	jobs, _ := listAll(t, s, pawl.ListSpec{Limit: 10, Payloads: true})
	byID := make(map[pawl.ID]*pawl.Job)
	for _, j := range jobs {
		byID[j.ID] = j
	}
	return byID
}

func payloads(jobs []*pawl.Job) (p [][]byte) {
	for _, j := range jobs {
		p = append(p, bytes.Clone(j.Payload))
	}
	return p
}

func scribble(b []byte, m map[string]string) {
	for i := range b {
		b[i] = 'X'
	}
	for k := range m {
		m[k] = "X"
	}
}

func scribbleJob(j *pawl.Job) {
	scribble(j.Payload, j.Meta)
	scribble(j.Result, nil)
	for i := range j.Failures {
		j.Failures[i].Error = "X"
	}
	if j.Progress != nil {
		j.Progress.Percent = 99
		j.Progress.Counters["rows"] = 99
	}
}
