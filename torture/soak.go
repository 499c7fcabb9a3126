package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pawlq/pawl/torture/check"
	"github.com/pawlq/pawl/torture/results"
)

// A goal is what a soak wants to have shown of a storage, and the arguments of the legs
// by which it gets there.
type goal struct {
	name, storage string
	want          results.Counts
	leg           []string
	rank          int // after those of a lower one
}

// Legs of goals. Faults stop when there were about as many as the leg is there for, so that a
// slow machine gets to the end of its jobs.
var (
	// Claims bring many jobs, so that they pass in spite of all.
	crowd = []string{"-slots", "50", "-callers", "3", "-batch", "200"}
	// The server goes away and comes back, and nothing else happens.
	away = append([]string{"-only", killServer.String(), "-for", "75s", "-every", "25s", "-jobs", "120000"}, crowd...)
	// There is no room for jobs for some seconds, and nothing else happens.
	full = append([]string{"-only", fillDisk.String(), "-disk", "512m", "-for", "60s", "-every", "8s", "-jobs", "30000"}, crowd...)
	// Workers die and nothing else is wrong, so that the time of each death counts.
	deaths = append([]string{"-only", killWorker.String(), "-for", "60s", "-every", "400ms", "-jobs", "60000"}, crowd...)
	// Long enough to tell whether a worker grows.
	long = []string{"-for", "12m", "-jobs", "250000", "-every", "1s", "-cut-every", "1s"}
)

// goals are those of a whole soak. On a machine with two cores that does nothing else it
// takes about two hours.
var goals = []goal{
	{"postgres", "postgres", wanted(1_000_000, 500, 100, 2000, true), append([]string{"-jobs", "200000", "-for", "80s", "-every", "200ms", "-cut-every", "150ms", "-most", "260"}, crowd...), 0},
	{"mysql", "mysql", wanted(500_000, 300, 60, 2000, true), append([]string{"-jobs", "100000", "-for", "60s", "-every", "250ms", "-cut-every", "120ms", "-most", "160"}, crowd...), 0},
	{"redis", "redis", wanted(1_000_000, 300, 60, 2000, false), append([]string{"-jobs", "200000", "-for", "60s", "-every", "250ms", "-cut-every", "120ms", "-most", "160"}, crowd...), 0},
	{"sqlite", "sqlite", wanted(200_000, 200, 0, 0, true), append([]string{"-jobs", "50000", "-for", "40s", "-every", "500ms", "-most", "100"}, crowd...), 0},
	{"postgres, worker kills only", "postgres", results.Counts{results.Timed: 100}, deaths, 1},
	{"mysql, worker kills only", "mysql", results.Counts{results.Timed: 100}, deaths, 1},
	{"redis, worker kills only", "redis", results.Counts{results.Timed: 100}, deaths, 1},
	{"sqlite, worker kills only", "sqlite", results.Counts{results.Timed: 100}, deaths, 1},
	{"postgres, server kills only", "postgres", results.Counts{results.Returned: 5}, away, 1},
	{"mysql, server kills only", "mysql", results.Counts{results.Returned: 5}, away, 1},
	{"redis, server kills only", "redis", results.Counts{results.Returned: 5}, away, 1},
	{"postgres, full disks", "postgres", results.Counts{results.FullDisks: 10}, full, 1},
	{"mysql, full disks", "mysql", results.Counts{results.FullDisks: 10}, full, 1},
	{"redis, full disks", "redis", results.Counts{results.FullDisks: 10}, full, 1},
	{"sqlite, full disks", "sqlite", results.Counts{results.FullDisks: 10}, full, 1},
	{"postgres, long", "postgres", results.Counts{results.Legs: 1}, long, 2},
	{"mysql, long", "mysql", results.Counts{results.Legs: 1}, long, 2},
	{"redis, long", "redis", results.Counts{results.Legs: 1}, long, 2},
	{"sqlite, long", "sqlite", results.Counts{results.Legs: 1}, long, 2},
}

// wanted is a goal. What else the faults are to hit follows from these, but for transactions of
// unknown outcome, which only cuts leave.
func wanted(jobs, kills, serverKills, cuts int64, tx bool) results.Counts {
	c := results.Counts{results.Jobs: jobs, results.Kills: kills, results.Pauses: kills / 10, results.Stale: 100}
	for p := range check.NumPhases {
		c[results.With(p)] = 10
	}
	c[results.With(check.Enqueuing)] = 3 // few producers are killed, and most of their calls are short
	if cuts == 0 {
		return c
	}
	c[results.ServerKills], c[results.ServerStops], c[results.Backends] = serverKills, serverKills/10, kills/4
	c[results.Cuts], c[results.Unknown] = cuts, 50
	if tx {
		c[results.UnknownTx] = 50
	}
	return c
}

// A soak is kept in a file of its folder, so that it can go on another time.
type soak struct {
	o      *options
	out    io.Writer
	goals  []goal
	until  time.Time
	Totals map[string]*results.Total // by name of the goal
	Took   map[string]time.Duration  // by the last leg
}

const soakFile = "soak.json"

var (
	errBroken = errors.New("there were legs in which something did not hold, or which did not come to their end")
	errMissed = errors.New("missed")
)

// runSoak makes legs until all goals are reached or the time is over.
func runSoak(ctx context.Context, o *options, goals []goal, out io.Writer) error {
	s := &soak{o: o, out: out, goals: possible(goals, out), until: time.Now().Add(o.duration), Totals: map[string]*results.Total{}, Took: map[string]time.Duration{}}
	if err := s.read(); err != nil {
		return err
	}
	s.resume()
	for ctx.Err() == nil {
		g := s.next()
		if g == nil {
			break
		}
		if err := s.leg(ctx, g); err != nil {
			return err
		}
	}
	return errors.Join(ctx.Err(), s.tell())
}

// possible leaves out the goals with disks of their own where there can be none.
func possible(goals []goal, out io.Writer) []goal {
	d, err := newDisk("1m")
	if err == nil {
		err = d.close()
	}
	if err == nil {
		return goals
	}
	return slices.DeleteFunc(slices.Clone(goals), func(g goal) bool {
		onDisk := slices.Contains(g.leg, "-disk")
		if onDisk {
			fmt.Fprintf(out, "%s: left out: %v\n", g.name, err)
		}
		return onDisk
	})
}

// next is the goal that is furthest from being reached, of those that come first, and for
// which there is time; nil if there is none.
func (s *soak) next() (next *goal) {
	least := math.Inf(1)
	for i := range s.goals {
		g := &s.goals[i]
		if s.o.storage != "" && g.storage != s.o.storage || time.Now().Add(s.Took[g.name]).After(s.until) {
			continue
		}
		done := s.total(g).Reached()
		if done >= 1 {
			continue
		}
		if place := float64(g.rank) + done; place < least {
			next, least = g, place
		}
	}
	return next
}

func (s *soak) total(g *goal) *results.Total {
	t := s.Totals[g.name]
	if t == nil {
		t = &results.Total{Storage: g.name}
		s.Totals[g.name] = t
	}
	t.Goal = g.want
	return t
}

// leg makes a leg towards a goal, whose outcome counts whatever it is. Whether the faults hit in
// it is asked, and said; whether they did in all legs is in what is wanted.
func (s *soak) leg(ctx context.Context, g *goal) error {
	seed := 1 + rand.Uint64N(1_000_000)
	args := slices.Concat([]string{"-storage", g.storage, "-seed", fmt.Sprint(seed), "-drain", "5m"}, g.leg)
	o, err := parse(args, s.out)
	if err != nil {
		return err
	}
	began := time.Now()
	shown, err := torture(ctx, o, s.out)
	if shown == nil {
		return err // it did not begin, or was broken off
	}
	shown.Storage = g.name
	s.Took[g.name] = time.Since(began)
	t := s.total(g)
	t.Add(shown)
	fmt.Fprintf(s.out, "%s: %d legs, %.0f %% of what is wanted, the last one in %v (%v)\n\n", g.name, len(t.Seeds), 100*min(1, t.Reached()),
		s.Took[g.name].Round(time.Second), err)
	if s.o.results != "" {
		if err := results.Put(s.o.results, t); err != nil {
			return err
		}
	}
	return s.write()
}

func (s *soak) read() error {
	if err := os.MkdirAll(s.o.soak, 0o755); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(s.o.soak, soakFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(text, s)
}

func (s *soak) write() error {
	text, err := json.MarshalIndent(s, "", "\t")
	if err != nil {
		return err
	}
	path := filepath.Join(s.o.soak, soakFile)
	if err := os.WriteFile(path+".new", text, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// resume says whose totals are gone on with, if another source had a part in them.
func (s *soak) resume() {
	now := results.Revision()
	for _, name := range slices.Sorted(maps.Keys(s.Totals)) {
		others := slices.DeleteFunc(slices.Clone(s.Totals[name].Revisions), func(r string) bool { return r == now })
		if len(others) > 0 {
			fmt.Fprintf(s.out, "%s: goes on at revision %s from totals of %v\n", name, now, others)
		}
	}
}

// tell says what was reached, and fails if something did not hold in any leg, or was missed.
func (s *soak) tell() error {
	var broken, missed []string
	for i := range s.goals {
		g := &s.goals[i]
		t := s.Totals[g.name]
		if t == nil {
			continue
		}
		fmt.Fprintf(s.out, "%s: %d legs, %.0f %% of what is wanted; %v\n", g.name, len(t.Seeds), 100*min(1, t.Reached()), t.Counts)
		if len(t.Vacuous) > 0 {
			fmt.Fprintf(s.out, "%s: the faults hardly hit in legs of seeds %v\n", g.name, t.Vacuous)
		}
		if len(t.Broken) > 0 {
			broken = append(broken, fmt.Sprintf("%s: seeds %v", g.name, t.Broken))
		}
		for _, text := range t.Missed() {
			missed = append(missed, g.name+": "+text)
		}
	}
	var err error
	if broken != nil {
		err = fmt.Errorf("%w: %s", errBroken, strings.Join(broken, "; "))
	}
	if missed != nil {
		err = errors.Join(err, fmt.Errorf("%w: %s", errMissed, strings.Join(missed, "; ")))
	}
	return err
}
