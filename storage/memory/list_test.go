package memory

import (
	"encoding/base64"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/pawlq/pawl"
)

func cursorOf(t testing.TB, s *Store) string {
	t.Helper()
	p, err := s.List(ctx, pawl.ListSpec{Limit: 1})
	if err != nil || p.Next == "" {
		t.Fatalf("page %+v, error %v", p, err)
	}
	return p.Next
}

func TestBadCursor(t *testing.T) {
	s, _ := newStore(t)
	enqueue(t, s, newRequest(nil), newRequest(nil))
	good := cursorOf(t, s)
	bad := []string{"x", "!", good + "A", good + good, string(make([]byte, 1<<20))}
	for i := range good {
		bad = append(bad, good[:i+1]+"\n"+good[i+1:])
		if i > 0 {
			bad = append(bad, good[:i])
		}
	}
	raw, err := base64.RawURLEncoding.DecodeString(good)
	if err != nil {
		t.Fatal(err)
	}
	for i := range len(raw) * 8 {
		raw[i/8] ^= 1 << (i % 8)
		bad = append(bad, base64.RawURLEncoding.EncodeToString(raw))
		raw[i/8] ^= 1 << (i % 8)
	}
	for _, p := range []position{{state: 0}, {state: pawl.Canceled + 1}} {
		bad = append(bad, p.String()) // forged, with a good checksum
	}
	for _, cursor := range bad {
		_, err := s.List(ctx, pawl.ListSpec{Limit: 1, Cursor: cursor})
		var invalid *pawl.InvalidError
		if !errors.As(err, &invalid) || invalid.Field != "Cursor" || !errors.Is(err, pawl.ErrInvalid) {
			t.Errorf("cursor %.80q: error %v", cursor, err)
		}
	}
}

// FuzzCursor sees that a cursor is refused or means one position only, and that
// List bears whatever it means.
func FuzzCursor(f *testing.F) {
	s, _ := newStore(f)
	for _, queue := range []string{"a", "b"} {
		enqueueN(f, s, 3, func(i int, r *pawl.Request) {
			r.Queue, r.Priority, r.Delay = queue, i, time.Duration(i)*time.Second
		})
	}
	f.Add(cursorOf(f, s))
	f.Add("")
	f.Fuzz(func(t *testing.T, cursor string) {
		p, err := parseCursor(cursor)
		if err == nil && p.String() != cursor {
			t.Errorf("%q parses to the same as %q", cursor, p)
		}
		page, err := s.List(ctx, pawl.ListSpec{Limit: 10, Cursor: cursor})
		if err == nil && len(page.Jobs) > 6 {
			t.Errorf("%d jobs", len(page.Jobs))
		}
	})
}

// TestCursorOfForgottenQueue reads on when the queue of the cursor is gone.
func TestCursorOfForgottenQueue(t *testing.T) {
	s, _ := newStore(t)
	b := newRequest(func(r *pawl.Request) { r.Queue = "b" })
	c := newRequest(func(r *pawl.Request) { r.Queue = "c" })
	enqueue(t, s, b, c)
	cursor := cursorOf(t, s)
	change(t, s, pawl.Change{Verb: pawl.Delete, IDs: []pawl.ID{b.ID}})
	enqueue(t, s, newRequest(func(r *pawl.Request) { r.Queue = "a" }))
	jobs, _ := listAll(t, s, pawl.ListSpec{Limit: 5, Cursor: cursor})
	if len(jobs) != 1 || jobs[0].ID != c.ID {
		t.Errorf("got %v", jobs)
	}
}

// TestListIsBounded lists few jobs behind many others that do not match, and
// behind many queues.
func TestListIsBounded(t *testing.T) {
	s, _ := newStore(t)
	for range 2 {
		enqueueN(t, s, maxHold, func(i int, r *pawl.Request) { r.Kind = "other" })
		enqueueN(t, s, maxHold/2, func(i int, r *pawl.Request) {
			r.Kind, r.Queue = "other", fmt.Sprintf("p%d-%v", i, r.ID)
		})
	}
	enqueueN(t, s, 5, func(int, *pawl.Request) {})
	jobs, pages := listAll(t, s, pawl.ListSpec{Filter: pawl.Filter{Kind: "k"}, Limit: 2})
	if len(jobs) != 5 || pages < 4 || pages > 10 {
		t.Errorf("%d jobs on %d pages", len(jobs), pages)
	}
}

func TestListPageBytes(t *testing.T) {
	s, _ := newStore(t)
	enqueueN(t, s, 20, func(i int, r *pawl.Request) {
		r.Payload = make([]byte, pawl.MaxPageBytes/8)
		if i == 10 {
			r.Payload = make([]byte, pawl.MaxPageBytes+1) // alone on its page
		}
	})
	var got []int
	l := pawl.ListSpec{Limit: 100, Payloads: true}
	for {
		p, err := s.List(ctx, l)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, len(p.Jobs))
		if l.Cursor = p.Next; l.Cursor == "" {
			break
		}
	}
	if diff := cmp.Diff([]int{8, 2, 1, 8, 1}, got); diff != "" {
		t.Error(diff)
	}
	if jobs, pages := listAll(t, s, pawl.ListSpec{Limit: 100}); pages != 1 || jobs[0].Payload != nil {
		t.Errorf("without payloads: %d pages, payload of %d bytes", pages, len(jobs[0].Payload))
	}
}
