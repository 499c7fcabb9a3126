package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"github.com/google/uuid"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/torture/history"
	"github.com/pawlq/pawl/torture/load"
)

// show prints what the histories in a folder tell of one job, in order of time.
func show(out io.Writer, dir, text string) error {
	id, err := uuid.Parse(text)
	if err != nil {
		return err
	}
	type line struct {
		process string
		history.Event
	}
	var lines []line
	names, err := history.Processes(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		err := history.Read(dir, name, func(e history.Event) {
			if e.ID == id {
				lines = append(lines, line{name, e})
			}
		})
		if err != nil {
			return err
		}
	}
	slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(a.At, b.At) })
	for _, l := range lines {
		fmt.Fprintf(out, "%12.6f %-13s %-10v fence %d%s\n", float64(l.At-lines[0].At)/1e9, l.process, l.Kind, l.Fence, details(&l.Event))
	}
	return nil
}

// details says what A and B are.
func details(e *history.Event) string {
	switch e.Kind {
	case history.Intend:
		return fmt.Sprintf(", class %v, way %d", load.Class(e.A), e.B)
	case history.Accepted, history.Resolved:
		return fmt.Sprintf(", %v", pawl.ReceiptStatus(e.A))
	case history.Claimed:
		return fmt.Sprintf(", counts %x, lease until %d", e.A, e.B)
	case history.Offered, history.Settled, history.Lost, history.Open, history.Stale, history.Forgiven, history.Fenced:
		return fmt.Sprintf(", %v, delay %d", pawl.Verb(e.A), e.B)
	case history.Start:
		return fmt.Sprintf(", due %d, claimed %d", e.A, e.B)
	default:
		return fmt.Sprintf(", %d, %d", e.A, e.B)
	}
}
