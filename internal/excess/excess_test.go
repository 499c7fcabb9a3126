package excess

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/pawlq/pawl"
)

// A store holds the ends of completed jobs by queue, the oldest first.
type store struct {
	queues map[string][]int
	looks  []string // the queues that were looked at
	read   int
	fails  bool
}

var errFails = errors.New("fails")

func (s *store) source() Source[int] {
	return Source[int]{
		Look: func(after string, bounds []Bound) (string, []Cut[int], int, error) {
			queue := ""
			for q := range s.queues {
				if q > after && (queue == "" || q < queue) {
					queue = q
				}
			}
			if queue == "" {
				return "", nil, 0, nil
			}
			s.looks = append(s.looks, queue)
			ends, most := s.queues[queue], bounds[0].Most
			read := min(len(ends), most+1)
			s.read += read
			if len(ends) <= most {
				return queue, nil, read, nil
			}
			return queue, []Cut[int]{{queue, bounds[0], ends[len(ends)-1-most]}}, read, nil
		},
		Nth: func(c Cut[int], n int) (int, bool, error) {
			ends := s.queues[c.Queue]
			if n > len(ends) || ends[n-1] > c.Last {
				return 0, false, nil
			}
			return ends[n-1], true, nil
		},
		Purge: func(c Cut[int], limit int) (n int, err error) {
			if s.fails {
				return 0, errFails
			}
			ends := s.queues[c.Queue]
			for n < limit && n < len(ends) && ends[n] <= c.Last {
				n++
			}
			s.queues[c.Queue] = ends[n:]
			return n, nil
		},
	}
}

func (s *store) take() string {
	defer func() { s.looks = nil }()
	return strings.Join(s.looks, " ")
}

func ends(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

func sweep(t *testing.T, r *Round[int], s *store, most, limit int) int {
	t.Helper()
	n, err := r.Sweep(pawl.SweepSpec{MaxCompleted: most}, limit, s.source())
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestAround(t *testing.T) {
	var r Round[int]
	s := &store{queues: map[string][]int{"a": ends(3), "b": ends(14), "c": ends(12), "d": ends(10)}}
	for i, step := range []struct {
		limit, purged int
		looks         string
	}{
		{2, 2, "a b"},
		{3, 3, "c d a b"}, // 2 of c, 1 of b
		{4, 1, "c d a b"},
		{4, 0, "c d a b"},
		{0, 0, ""},
	} {
		if n := sweep(t, &r, s, 10, step.limit); n != step.purged {
			t.Errorf("step %d: purged %d, want %d", i, n, step.purged)
		}
		if looks := s.take(); looks != step.looks {
			t.Errorf("step %d: looked at %q, want %q", i, looks, step.looks)
		}
	}
	for q, left := range s.queues {
		if len(left) > 10 {
			t.Errorf("%d are left in %s", len(left), q)
		}
	}
	if n, err := r.Sweep(pawl.SweepSpec{}, 100, s.source()); n != 0 || err != nil || s.looks != nil {
		t.Errorf("without a bound: %d, %v, looked at %v", n, err, s.looks)
	}
}

// TestCost: a Sweep reads perSweep entries on average, whatever there is.
func TestCost(t *testing.T) {
	for _, c := range []struct {
		name   string
		queues map[string][]int
		most   int
	}{
		{"one large queue within its number", map[string][]int{"a": ends(pawl.MaxKept)}, pawl.MaxKept},
		{"one large queue beyond it", map[string][]int{"a": ends(pawl.MaxKept + 30_000)}, pawl.MaxKept},
		{"many queues", many(1000, 1000), 1000},
	} {
		var r Round[int]
		s := &store{queues: c.queues}
		const sweeps = 100
		for range sweeps {
			sweep(t, &r, s, c.most, pawl.MaxStep)
		}
		if s.read > (sweeps+10)*perSweep {
			t.Errorf("%s: read %d entries", c.name, s.read)
		}
		if looks := s.looks; len(looks) > sweeps*perSweep/perQueue {
			t.Errorf("%s: %d looks", c.name, len(looks))
		}
		for q, left := range s.queues {
			if len(left) > c.most || !slices.Contains(s.looks, q) {
				t.Errorf("%s: %d are left in %s", c.name, len(left), q)
			}
		}
	}
}

func many(queues, jobs int) map[string][]int {
	m := make(map[string][]int)
	for i := range queues {
		m[string(rune('a'+i))] = ends(jobs)
	}
	return m
}

// TestFound: beyond a great number, what was found is deleted without another
// look; a number that was raised meanwhile is heeded.
func TestFound(t *testing.T) {
	var r Round[int]
	s := &store{queues: map[string][]int{"a": ends(2*exact + 300)}}
	for i, step := range []struct {
		most, purged int
		looks        string
	}{
		{2 * exact, 100, "a"},
		{2 * exact, 100, ""},
		{2*exact + 150, 0, "a"},
		{2*exact + 150, 0, "a"},
		{2 * exact, 100, "a"},
		{2 * exact, 0, "a"}, // nothing was left of what was found
	} {
		if n := sweep(t, &r, s, step.most, 100); n != step.purged {
			t.Errorf("step %d: purged %d, want %d", i, n, step.purged)
		}
		if looks := s.take(); looks != step.looks {
			t.Errorf("step %d: looked at %q, want %q", i, looks, step.looks)
		}
	}
	if n := len(s.queues["a"]); n != 2*exact {
		t.Errorf("%d are left", n)
	}
}

// TestFailure: after an error the next Sweep begins with a look.
func TestFailure(t *testing.T) {
	var r Round[int]
	s := &store{queues: map[string][]int{"a": ends(2*exact + 300)}, fails: true}
	if _, err := r.Sweep(pawl.SweepSpec{MaxCompleted: 2 * exact}, 100, s.source()); !errors.Is(err, errFails) {
		t.Fatalf("error %v", err)
	}
	s.fails = false
	if n := sweep(t, &r, s, 2*exact, 1000); n != 300 {
		t.Errorf("purged %d, want 300", n)
	}
}

// TestLookFails: a look that reads much and fails is not made again by each Sweep.
func TestLookFails(t *testing.T) {
	var r Round[int]
	from, looks := (&store{}).source(), 0
	from.Look = func(string, []Bound) (string, []Cut[int], int, error) {
		looks++
		return "", nil, 0, errFails
	}
	failed := 0
	for range 100 {
		if _, err := r.Sweep(pawl.SweepSpec{MaxCompleted: pawl.MaxKept}, 100, from); err != nil {
			failed++
		}
	}
	if looks != failed || looks < 4 || looks > 6 { // each is worth 20 Sweeps
		t.Errorf("%d looks, %d Sweeps of 100 failed", looks, failed)
	}
}

// TestOneLookFails: a queue that can't be counted does not hide those behind it.
func TestOneLookFails(t *testing.T) {
	var r Round[int]
	s := &store{queues: map[string][]int{"a": ends(12), "b": ends(12), "c": ends(30)}}
	from := s.source()
	look := from.Look
	from.Look = func(after string, bounds []Bound) (string, []Cut[int], int, error) {
		queue, cuts, read, err := look(after, bounds)
		if queue == "b" {
			return queue, nil, 0, errFails
		}
		return queue, cuts, read, err
	}
	for i := range 3 {
		if _, err := r.Sweep(pawl.SweepSpec{MaxCompleted: 10}, 1000, from); !errors.Is(err, errFails) {
			t.Errorf("sweep %d: error %v", i, err)
		}
	}
	if looks := s.take(); looks != "a b c a b c a b" {
		t.Errorf("looked at %q", looks)
	}
	for queue, left := range map[string]int{"a": 10, "b": 12, "c": 10} {
		if n := len(s.queues[queue]); n != left {
			t.Errorf("%d are left in %s, want %d", n, queue, left)
		}
	}
}

// TestAtOnce: a second Sweep leaves the work to the first.
func TestAtOnce(t *testing.T) {
	var r Round[int]
	s := &store{queues: map[string][]int{"a": ends(20)}}
	from := s.source()
	look := from.Look
	from.Look = func(after string, bounds []Bound) (string, []Cut[int], int, error) {
		if n := sweep(t, &r, s, 10, 100); n != 0 {
			t.Errorf("the second purged %d", n)
		}
		return look(after, bounds)
	}
	if n, err := r.Sweep(pawl.SweepSpec{MaxCompleted: 10}, 100, from); n != 10 || err != nil {
		t.Errorf("purged %d, error %v", n, err)
	}
}
