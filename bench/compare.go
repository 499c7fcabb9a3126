package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
)

// Noise that is assumed at least, as a share of the median: of a figure with
// enough repetitions to show its own, and of one with fewer.
const (
	enoughReps              = 3
	knownNoise, singleNoise = 0.05, 0.15
)

// A verdict says how a figure of pawl has changed.
type verdict string

const (
	same     verdict = "" // within the noise
	better   verdict = "better"
	worse    verdict = "WORSE"
	asPeers  verdict = "slower, as the peers are" // the machine, not pawl
	noFigure verdict = "NO FIGURE"                // the cell failed, and did not before
)

// A change is one figure of pawl in two files; old is nil if a cell has none now.
type change struct {
	old, new *Result
	verdict  verdict
}

// compareFiles shows which figures of pawl have changed beyond the noise from one
// file to the other. A regression is an error.
func compareFiles(out io.Writer, oldFile, newFile string) error {
	before, _, err := readJSON(oldFile)
	if err != nil {
		return err
	}
	after, _, err := readJSON(newFile)
	if err != nil {
		return err
	}
	changes := compare(before, after)
	if len(changes) == 0 {
		return errors.New("the files have no figure of pawl in common")
	}
	if err := writeChanges(out, changes); err != nil {
		return err
	}
	if n := len(ofVerdict(changes, worse)) + len(ofVerdict(changes, noFigure)); n > 0 {
		return fmt.Errorf("%d regressions", n)
	}
	return nil
}

// compare judges the figures of pawl that are in both, but those that need neither
// be more nor less. A cell that fails now and did not is a change too.
func compare(before, after []*Result) (changes []change) {
	old := map[string]*Result{}
	for _, r := range before {
		old[key(r)] = r
	}
	for _, now := range after {
		was := old[key(now)]
		switch {
		case now.System != "pawl" || now.Workload == jobsPerClaim:
		case now.Reason != "" && (was == nil || was.Reason == ""):
			changes = append(changes, change{was, now, noFigure})
		case now.Reason == "" && was != nil && was.Reason == "":
			changes = append(changes, change{was, now, judge(was, now)})
		}
	}
	return changes
}

// key tells figures apart.
func key(r *Result) string {
	return fmt.Sprintf("%s/%s/%s/%s", r.Workload, r.Storage, r.System, r.Params)
}

// judge compares the ranges of two figures. If they do not overlap, and pawl
// is worse, also the ratios to the peers must have fallen by more than the noise:
// they were measured on the same machine at the same time.
func judge(old, now *Result) verdict {
	oldLow, oldHigh := noise(old)
	newLow, newHigh := noise(now)
	switch {
	case oldLow <= newHigh && newLow <= oldHigh:
		return same
	case (now.Value < old.Value) == old.less:
		return better
	case !ratiosFell(old, now):
		return asPeers
	}
	return worse
}

// noise is the range in which a figure lies: from its least to its greatest
// repetition, and at least as wide as figures always differ.
func noise(r *Result) (low, high float64) {
	share := knownNoise
	if r.N < enoughReps {
		share = singleNoise
	}
	return min(r.Min, r.Value*(1-share)), max(r.Max, r.Value*(1+share))
}

// ratiosFell reports whether the ratios have fallen to all that both figures were
// compared with, in the median and beyond the noise of either; also if there are
// none.
func ratiosFell(old, now *Result) bool {
	var changed []float64
	for peer, ratio := range old.RatioTo {
		if to := now.RatioTo[peer]; to > 0 && ratio > 0 {
			changed = append(changed, to/ratio)
		}
	}
	return len(changed) == 0 || median(changed) < 1-max(spread(old), spread(now))
}

// spread is half of the width of the noise, as a share of the figure.
func spread(r *Result) float64 {
	low, high := noise(r)
	return min((high-low)/2/r.Value, 0.5)
}

func ofVerdict(changes []change, v verdict) (found []change) {
	for _, c := range changes {
		if c.verdict == v {
			found = append(found, c)
		}
	}
	return found
}

// writeChanges writes what is beyond the noise, regressions first, and how much is
// not.
func writeChanges(out io.Writer, changes []change) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if _, err := fmt.Fprintln(t, "verdict\tfigure\tstorage\tparameters\told\tnew\tunit\ttimes\tratios"); err != nil {
		return err
	}
	for _, v := range []verdict{noFigure, worse, asPeers, better} {
		for _, c := range ofVerdict(changes, v) {
			if _, err := fmt.Fprintln(t, c.row()); err != nil {
				return err
			}
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "%d figures of pawl compared, %d within the noise\n", len(changes), len(ofVerdict(changes, same)))
	return err
}

func (c change) row() string {
	head := fmt.Sprintf("%s\t%s\t%s\t%s", c.verdict, c.new.Workload, c.new.Storage, c.new.Params)
	if c.verdict == noFigure {
		return head + "\t\t-\t\t\t" + c.new.Reason
	}
	ratios := ""
	for _, peer := range slices.Sorted(maps.Keys(c.old.RatioTo)) {
		ratios += fmt.Sprintf("%s %.2f to %.2f  ", peer, c.old.RatioTo[peer], c.new.RatioTo[peer])
	}
	return fmt.Sprintf("%s\t%s\t%s\t%s\t%.2f\t%s", head, ranged(c.old), ranged(c.new), c.new.Unit, quotient(c.new.Value, c.old.Value), ratios)
}

// ranged is a median with its range.
func ranged(r *Result) string {
	if r.N < 2 {
		return number(r.Value)
	}
	return fmt.Sprintf("%s (%s–%s)", number(r.Value), number(r.Min), number(r.Max))
}
