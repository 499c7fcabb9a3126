package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/pawlq/pawl"
)

// An outcome is what the service says about a picture, and what is wrong with
// its thumbnail.
type outcome struct {
	status
	thumbnail error
}

// A summary counts what became of the demo's pictures.
type summary struct {
	uploaded   int
	broken     int             // of the uploaded: can't be decoded
	thumbnails int             // that are there and can be decoded
	retries    int             // runs that failed and were repeated
	retried    int             // pictures with such runs
	rescued    int             // pictures whose worker died
	buried     []status        // in the dead-letter queue
	lost       []string        // neither: one line each
	wrong      []string        // the one instead of the other: one line each
	waits      []time.Duration // from upload to thumbnail, in order
}

func newSummary(uploads map[int64]upload, outcomes map[int64]outcome) *summary {
	s := &summary{uploaded: len(uploads)}
	for _, id := range slices.Sorted(maps.Keys(uploads)) {
		if o, ok := outcomes[id]; ok {
			s.add(uploads[id], o)
		} else {
			s.lost = append(s.lost, uploads[id].name+": not listed")
		}
	}
	slices.Sort(s.waits)
	return s
}

func (s *summary) add(u upload, o outcome) {
	if u.broken {
		s.broken++
	}
	s.retries += o.Retries
	if o.Retries > 0 {
		s.retried++
	}
	if o.Rescues > 0 {
		s.rescued++
	}
	switch {
	case o.thumbnail == nil:
		s.thumbnails++
		s.waits = append(s.waits, o.Made.Sub(o.Uploaded))
		if u.broken {
			s.wrong = append(s.wrong, u.name+": is broken, but has a thumbnail")
		}
	case o.State == pawl.Buried.String():
		s.buried = append(s.buried, o.status)
		// A whole picture may end there too, after failures at all attempts
		// or the deaths of many workers, but not by its handler's judgement.
		if !u.broken && o.Reason == string(pawl.ReasonBury) {
			s.wrong = append(s.wrong, u.name+": is a whole picture, but was buried")
		}
	default:
		s.lost = append(s.lost, fmt.Sprintf("%s: its job is %s; thumbnail: %v", u.name, o.State, o.thumbnail))
	}
}

// check tells which sums are off.
func (s *summary) check() error {
	var errs []error
	if s.uploaded != s.thumbnails+len(s.buried) {
		errs = append(errs, fmt.Errorf("%d uploaded, but %d thumbnails and %d buried", s.uploaded, s.thumbnails, len(s.buried)))
	}
	for _, line := range slices.Concat(s.lost, s.wrong) {
		errs = append(errs, errors.New(line))
	}
	return errors.Join(errs...)
}

func (s *summary) print(w io.Writer) {
	row := func(name string, n int, what string) {
		fmt.Fprintf(w, "  %-11s %6d  %s\n", name, n, what)
	}
	fmt.Fprintln(w)
	row("uploaded", s.uploaded, fmt.Sprintf("%d whole, %d broken", s.uploaded-s.broken, s.broken))
	row("thumbnails", s.thumbnails, "each fetched and decoded")
	row("retried", s.retries, fmt.Sprintf("runs, of %d pictures", s.retried))
	row("rescued", s.rescued, "pictures whose worker died")
	row("buried", len(s.buried), "in the dead-letter queue")
	row("lost", len(s.lost), "neither thumbnail nor buried")
	if len(s.waits) > 0 {
		fmt.Fprintf(w, "  %-11s %6s  from upload to thumbnail\n", "p50", short(percentile(s.waits, 0.50)))
		fmt.Fprintf(w, "  %-11s %6s\n", "p99", short(percentile(s.waits, 0.99)))
	}
	if len(s.buried) > 0 {
		fmt.Fprintln(w, "\n  buried:")
	}
	for _, b := range s.buried {
		fmt.Fprintf(w, "    %s: %s\n", b.Name, b.Error)
	}
}

// percentile returns the smallest of the sorted ds that p of them do not
// exceed.
func percentile(ds []time.Duration, p float64) time.Duration {
	return ds[max(0, int(math.Ceil(p*float64(len(ds))))-1)]
}
