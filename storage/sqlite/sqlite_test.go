package sqlite_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/sqlite"
)

// clock is an injected clock.
type clock struct{ micros atomic.Int64 }

func newClock() *clock {
	c := new(clock)
	c.micros.Store(time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC).UnixMicro())
	return c
}

func (c *clock) Now() time.Time          { return time.UnixMicro(c.micros.Load()) }
func (c *clock) Advance(d time.Duration) { c.micros.Add(d.Microseconds()) }

func sweepAll(t testing.TB, s pawl.Storage) (steps int) {
	t.Helper()
	for {
		sw, err := s.Sweep(t.Context(), pawl.SweepSpec{Limit: 1000})
		if err != nil {
			t.Fatal(err)
		}
		steps++
		if !sw.More {
			return steps
		}
	}
}

// Payloads and results of any size come back byte for byte, and what is kept
// apart goes with its job.
func TestBlobsApart(t *testing.T) {
	s := open(t, nil)
	for _, size := range []int{0, 1, 1 << 10, 1<<10 + 1, 300_000} {
		data := bytes.Repeat([]byte{0, 0xff, '\''}, size/3+1)[:size]
		r := request(func(r *pawl.Request) { r.Payload = data })
		enqueue(t, s, r)
		j := claim(t, s, 1)[0]
		if !bytes.Equal(j.Payload, data) {
			t.Errorf("%d bytes: the payload has changed", size)
		}
		settle(t, s, pawl.Outcome{Ref: j.Ref, Verb: pawl.Ack, Result: data})
		page, err := s.List(t.Context(), pawl.ListSpec{Limit: 1, Payloads: true})
		if err != nil || len(page.Jobs) != 1 || !bytes.Equal(page.Jobs[0].Payload, data) || !bytes.Equal(page.Jobs[0].Result, data) {
			t.Errorf("%d bytes: List: %v", size, err)
		}
		if _, err := s.Change(t.Context(), pawl.Change{Verb: pawl.Kick, IDs: []pawl.ID{r.ID}}); err != nil {
			t.Fatal(err)
		}
		j = claim(t, s, 1)[0]
		if len(j.Result) > 0 {
			t.Error("a kick keeps the result")
		}
		settle(t, s, pawl.Outcome{Ref: j.Ref, Verb: pawl.Bury, Error: "boom"})
		if _, err := s.Change(t.Context(), pawl.Change{Verb: pawl.Delete, IDs: []pawl.ID{r.ID}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, table := range []string{"pawl_job", "pawl_payload", "pawl_result", "pawl_failure"} {
		var n int
		if err := s.DB().QueryRow("SELECT count(*) FROM " + table).Scan(&n); err != nil || n > 0 {
			t.Errorf("%s still has %d rows, %v", table, n, err)
		}
	}
}

// A replaced or edited payload may move between the tables.
func TestPayloadMoves(t *testing.T) {
	s := open(t, nil)
	keyed := func(size int) *pawl.Request {
		return request(func(r *pawl.Request) {
			r.Payload, r.UniqueKey, r.OnDuplicate = make([]byte, size), "k", pawl.Replace
		})
	}
	first := keyed(10)
	enqueue(t, s, first)
	for _, size := range []int{5000, 6000, 20, 0} {
		if got := enqueue(t, s, keyed(size))[0]; got.Status != pawl.Replaced || got.ID != first.ID {
			t.Errorf("got %+v, want Replaced", got)
		}
		if got := len(get(t, s, first.ID).Payload); got != size {
			t.Errorf("%d bytes, want %d", got, size)
		}
		c := pawl.Change{Verb: pawl.Edit, IDs: []pawl.ID{first.ID}, Edit: pawl.EditFields{Payload: make([]byte, size+1)}}
		if _, err := s.Change(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if got := len(get(t, s, first.ID).Payload); got != size+1 {
			t.Errorf("%d bytes, want %d", got, size+1)
		}
	}
	var apart int
	if err := s.DB().QueryRow("SELECT count(*) FROM pawl_payload").Scan(&apart); err != nil || apart != 0 {
		t.Errorf("%d payloads apart, %v", apart, err)
	}
}

// An ID twice in a batch, and IDs that are there, in the fast lane too.
func TestBatchReceipts(t *testing.T) {
	s := open(t, nil)
	a, b, c := request(), request(), request(func(r *pawl.Request) { r.Payload = make([]byte, 2000) })
	enqueue(t, s, b)
	var got []pawl.ReceiptStatus
	for _, r := range enqueue(t, s, a, b, a, c, c) {
		got = append(got, r.Status)
	}
	want := []pawl.ReceiptStatus{pawl.Stored, pawl.Exists, pawl.Exists, pawl.Stored, pawl.Exists}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got := len(get(t, s, c.ID).Payload); got != 2000 {
		t.Errorf("payload of %d bytes", got)
	}
	for _, r := range enqueue(t, s, a, b, c) {
		if r.Status != pawl.Exists {
			t.Errorf("got %v, want Exists", r.Status)
		}
	}
}

// All of a call, or nothing.
func TestEnqueueAllOrNone(t *testing.T) {
	s := open(t, nil)
	reqs := requests(10, func(r *pawl.Request) { r.MaxDepth = 5 })
	_, err := s.Enqueue(t.Context(), reqs)
	var full *pawl.FullError
	if !errors.As(err, &full) || *full != (pawl.FullError{Queue: "default", Limit: 5}) {
		t.Fatalf("got %v, want a FullError of 5", err)
	}
	if c := count(t, s); c.Ready != 0 {
		t.Errorf("%d jobs were stored", c.Ready)
	}
	enqueue(t, s, reqs[:5]...)
	if _, err := s.Enqueue(t.Context(), reqs[5:6]); !errors.Is(err, pawl.ErrFull) {
		t.Errorf("got %v, want ErrFull", err)
	}
}

// A locator that is wrong, or of a row that another job has now, does no harm.
func TestLocatorIsAHint(t *testing.T) {
	s := open(t, nil)
	enqueue(t, s, requests(2)...)
	jobs := claim(t, s, 2)
	for _, locator := range []int64{0, jobs[1].Locator, jobs[0].Locator | 1, -5, 1 << 60} {
		ref := jobs[0].Ref
		ref.Locator = locator
		if lost, err := s.Extend(t.Context(), []pawl.Renewal{{Ref: ref, Lease: time.Minute}}); err != nil || len(lost) > 0 {
			t.Errorf("locator %d: Extend: %v %v", locator, lost, err)
		}
	}
	ref := jobs[0].Ref
	ref.Locator = jobs[1].Locator
	settle(t, s, pawl.Outcome{Ref: ref, Verb: pawl.Ack})
	if a, b := get(t, s, jobs[0].ID).State, get(t, s, jobs[1].ID).State; a != pawl.Completed || b != pawl.Running {
		t.Errorf("the jobs are %v and %v, want completed and running", a, b)
	}
	forged := jobs[1].Ref
	forged.ID = jobs[0].ID
	if lost, err := s.Settle(t.Context(), []pawl.Outcome{{Ref: forged, Verb: pawl.Bury}}); err != nil || len(lost) != 1 {
		t.Errorf("a forged ref was accepted: %v", err)
	}
}

// The fence of an ID grows over deletion, re-enqueue and reopening of the file.
func TestFenceNeverRepeats(t *testing.T) {
	path := filepath.Join(t.TempDir(), "jobs.db")
	r := request(func(r *pawl.Request) { r.Retention = pawl.DeleteNow })
	last := int64(0)
	for range 3 {
		s, err := sqlite.Open(t.Context(), path, nil)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			enqueue(t, s, r)
			j := claim(t, s, 1)[0]
			if j.Fence <= last {
				t.Errorf("fence %d after %d", j.Fence, last)
			}
			last = j.Fence
			settle(t, s, pawl.Outcome{Ref: j.Ref, Verb: pawl.Ack})
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFileShrinks(t *testing.T) {
	c := newClock()
	s := open(t, &sqlite.Options{Clock: c.Now, Synchronous: sqlite.Off})
	for range 20 {
		enqueue(t, s, requests(100, func(r *pawl.Request) { r.Payload = make([]byte, 10<<10) })...)
	}
	for range 2 {
		settle(t, s, ack(claim(t, s, 1000))...)
	}
	before := fileSize(t, s)
	c.Advance(2 * time.Hour)
	if steps := sweepAll(t, s); steps < 3 {
		t.Errorf("it took %d sweeps, want bounded steps", steps)
	}
	if after := fileSize(t, s); after > before/10 {
		t.Errorf("%d of %d bytes are left", after, before)
	}
}

func fileSize(t testing.TB, s *sqlite.Store) int64 {
	t.Helper()
	execSQL(t, s, "PRAGMA wal_checkpoint(TRUNCATE)")
	info, err := os.Stat(fileOf(t, s))
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// A List looks at a bounded number of rows, and says where to go on.
func TestListIsBounded(t *testing.T) {
	s := open(t, nil)
	for range 12 {
		enqueue(t, s, requests(1000)...)
	}
	wanted := request(func(r *pawl.Request) { r.Kind = "wanted" })
	enqueue(t, s, wanted)
	spec := pawl.ListSpec{Filter: pawl.Filter{Kind: "wanted"}, Limit: 10}
	page, err := s.List(t.Context(), spec)
	if err != nil || len(page.Jobs) > 0 || page.Next == "" {
		t.Fatalf("got %d jobs, next %q, %v; want none yet", len(page.Jobs), page.Next, err)
	}
	spec.Cursor = page.Next
	page, err = s.List(t.Context(), spec)
	if err != nil || len(page.Jobs) != 1 || page.Next != "" {
		t.Fatalf("got %d jobs, next %q, %v; want one, the last", len(page.Jobs), page.Next, err)
	}
	for _, cursor := range []string{"?", "AAAA"} {
		spec.Cursor = cursor
		if _, err := s.List(t.Context(), spec); !errors.Is(err, pawl.ErrInvalid) {
			t.Errorf("cursor %q: got %v, want ErrInvalid", cursor, err)
		}
	}
	spec.Cursor, spec.Queue = (page.Next), "other"
	if page, err = s.List(t.Context(), spec); err != nil || len(page.Jobs) > 0 {
		t.Errorf("an empty queue gives %d jobs, %v", len(page.Jobs), err)
	}
}

func TestListPageHasBoundedBytes(t *testing.T) {
	s := open(t, nil)
	const size = 6 << 20
	for range 4 {
		enqueue(t, s, request(func(r *pawl.Request) { r.Payload = make([]byte, size) }))
	}
	seen := 0
	for spec := (pawl.ListSpec{Limit: 100, Payloads: true}); ; {
		page, err := s.List(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		if len(page.Jobs) > pawl.MaxPageBytes/size+1 {
			t.Errorf("a page of %d jobs", len(page.Jobs))
		}
		seen += len(page.Jobs)
		if spec.Cursor = page.Next; page.Next == "" {
			break
		}
	}
	if seen != 4 {
		t.Errorf("saw %d jobs, want 4", seen)
	}
}

// A path may have characters that mean something in a URI.
func TestOddPath(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a?b#c%20d e.db")
	openAt(t, path, nil)
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}

// Opening does not depend on what the file holds.
func TestOpensQuicklyAndSmall(t *testing.T) {
	s := open(t, nil)
	const jobs = 20_000
	for range jobs / 1000 {
		enqueue(t, s, requests(1000, func(r *pawl.Request) { r.Payload = make([]byte, 10<<10) })...)
	}
	path := fileOf(t, s)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	started := time.Now()
	again := openAt(t, path, nil)
	if n := len(claim(t, again, 10)); n != 10 {
		t.Errorf("claimed %d", n)
	}
	took := time.Since(started)
	runtime.ReadMemStats(&after)
	if took > time.Second || after.HeapAlloc > before.HeapAlloc+(16<<20) {
		t.Errorf("%v and %d bytes", took, after.HeapAlloc-before.HeapAlloc)
	}
}

// A Claim makes ready all that is due before it takes the most urgent.
func TestClaimOrderOfManyDue(t *testing.T) {
	c := newClock()
	s := open(t, &sqlite.Options{Clock: c.Now, Synchronous: sqlite.Off})
	const due = 3500
	for range due / 500 {
		enqueue(t, s, requests(500, func(r *pawl.Request) { r.Delay = time.Second })...)
	}
	urgent := request(func(r *pawl.Request) { r.Delay, r.Priority = 2*time.Second, -10 })
	enqueue(t, s, urgent)
	c.Advance(time.Minute)
	if got := claim(t, s, 1)[0]; got.ID != urgent.ID {
		t.Errorf("claimed a job of priority %d before one of -10", got.Priority)
	}
	if st := count(t, s); st.Ready != due {
		t.Errorf("%d are ready, want %d", st.Ready, due)
	}
}

// Without a limit of buried jobs a Sweep counts none; with one it stops where
// the limit is reached.
func TestBuriedLimits(t *testing.T) {
	c := newClock()
	s := open(t, &sqlite.Options{Clock: c.Now, Synchronous: sqlite.Off})
	var ids []pawl.ID
	for i := range 30 {
		r := request(func(r *pawl.Request) {
			if i%3 == 0 {
				r.UniqueKey, r.UniqueMode, r.UniqueWindow = r.ID.String(), pawl.UniqueUntilWindow, time.Hour
			}
		})
		ids = append(ids, enqueue(t, s, r)[0].ID)
		settle(t, s, pawl.Outcome{Ref: claim(t, s, 1)[0].Ref, Verb: pawl.Bury})
		c.Advance(time.Second)
	}
	purge := func(spec pawl.SweepSpec, want int) {
		t.Helper()
		sw, err := s.Sweep(t.Context(), spec)
		if err != nil || sw.Purged != want {
			t.Errorf("purged %d, want %d (%v)", sw.Purged, want, err)
		}
	}
	purge(pawl.SweepSpec{Limit: 100, MaxBuried: 30}, 0)
	purge(pawl.SweepSpec{Limit: 4, MaxBuried: 15}, 4)   // 1, 2, 4, 5
	purge(pawl.SweepSpec{Limit: 100, MaxBuried: 15}, 6) // 7, 8, 10, 11, 13, 14; windows keep the others
	purge(pawl.SweepSpec{Limit: 100, MaxBuried: 15}, 0)
	purge(pawl.SweepSpec{Limit: 100, BuriedRetention: time.Minute}, 0)
	if get(t, s, ids[15]) == nil || get(t, s, ids[14]) != nil {
		t.Error("want the newest 15 kept and what is older gone")
	}
}
