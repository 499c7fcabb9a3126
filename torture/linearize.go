package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/torture/linear"
)

// linearize looks at small histories of calls, each of a seed of its own.
func linearize(ctx context.Context, o *options, out io.Writer) (err error) {
	fmt.Fprintf(out, "go run . -linear %d -storage %s -seed %d\n", o.linear, o.storage, o.seed)
	dir, err := os.MkdirTemp("", "pawl-linear-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	p, err := newPlace(ctx, o.storage, dir, "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	rows := o.storage == "postgres" || o.storage == "mysql" // each locked by itself
	s := &linear.Subject{Clock: linear.NewClock(), Skips: rows, Looks: rows, Hesitates: o.storage == "sqlite"}
	for range handles(o.storage) {
		h, err := openStore(ctx, o.storage, p.direct, connections, s.Clock.Now)
		if err != nil {
			return err
		}
		defer h.close()
		s.Handles = append(s.Handles, h.Storage)
	}
	return lookAtAll(ctx, o, s, out)
}

// handles is how many there can be of a storage.
func handles(storage string) int {
	if storage == "memory" {
		return 1
	}
	return 2
}

// mostLooks bounds how many times more histories than asked for are looked at until there was
// all in them that there should be: some answers are rare.
const mostLooks = 4

// lookAtAll looks at histories, and that there was all in them that there should be.
func lookAtAll(ctx context.Context, o *options, s *linear.Subject, out io.Writer) error {
	all := linear.Counts{}
	for k := 0; k < o.linear || k < mostLooks*o.linear && o.lacks(all) != nil; k++ {
		seed := o.seed + uint64(k)
		n, err := linear.Check(ctx, s, seed)
		if err != nil {
			return fmt.Errorf("%s, history %d: %w", o.storage, seed, err)
		}
		for what, k := range n {
			all[what] += k
		}
	}
	for _, what := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(out, "%s %d\n", what, all[what])
	}
	return o.lacks(all)
}

// lacks says which answers came so seldom that histories show nothing of them.
func (o *options) lacks(all linear.Counts) error {
	var errs []error
	for _, what := range wantedAnswers {
		if o.vacuity && all[what] < o.linear/20 {
			errs = append(errs, fmt.Errorf("vacuous: %q came %d times", what, all[what]))
		}
	}
	return errors.Join(errs...)
}

// wantedAnswers are those that must come now and then, or nothing was shown.
var wantedAnswers = []string{
	"enqueue: " + pawl.Stored.String(), "enqueue: " + pawl.Exists.String(), "enqueue: " + pawl.Duplicate.String(),
	"claim: jobs", "claim: nothing", "settle: nothing", "settle: lost", "extend: nothing", "extend: lost", "sweep: rescued",
	"change: " + pawl.Done.String(), "change: " + pawl.WrongState.String(), "change: " + pawl.Conflict.String(), "get: jobs", "get: nothing",
}
