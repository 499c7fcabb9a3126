// Package workertest tests pools on any storage: that jobs end as their
// handlers say, whatever happens to calls, events and other workers.
package workertest

import (
	"testing"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/storagetest"
)

// Run runs all cases on storages of h: with what they can do, without cycles,
// and without events. Real time passes in them, but decides nothing.
func Run(t *testing.T, h storagetest.Harness) {
	s := h.Open(t, time.Now)
	_, watches := pawl.Find[pawl.Watcher](s)
	for _, form := range formsOf(s) {
		t.Run(form.name, func(t *testing.T) {
			for _, c := range cases(h, form.events) {
				t.Run(c.name, func(t *testing.T) {
					t.Parallel()
					c.run(newFixture(t, h, form.make))
				})
			}
		})
	}
	if watches {
		t.Run("soon", func(t *testing.T) { soon(t, h) })
	}
}

// A form is a storage seen with a part of what it can do.
type form struct {
	name   string
	make   func(pawl.Storage) pawl.Storage
	events bool
}

func formsOf(s pawl.Storage) []form {
	bare := func(s pawl.Storage) pawl.Storage { return struct{ pawl.Storage }{s} }
	forms := []form{{"bare", bare, false}}
	_, watches := pawl.Find[pawl.Watcher](s)
	_, cycles := pawl.Find[pawl.Cycler](s)
	if watches {
		watching := func(s pawl.Storage) pawl.Storage {
			w, _ := pawl.Find[pawl.Watcher](s)
			return struct {
				pawl.Storage
				pawl.Watcher
			}{s, w}
		}
		forms = append(forms, form{"watching", watching, true})
	}
	if cycles {
		forms = append(forms, form{"whole", func(s pawl.Storage) pawl.Storage { return s }, watches})
	}
	return forms
}

type testCase struct {
	name string
	run  func(*fixture)
}

func cases(h storagetest.Harness, events bool) []testCase {
	all := append(endCases(), []testCase{
		{"each job once", (*fixture).eachOnce},
		{"a foreign kind is handed back", (*fixture).foreignKind},
		{"cancel reaches the handler", func(f *fixture) { f.endedByHand(pawl.Cancel) }},
		{"delete reaches the handler", func(f *fixture) { f.endedByHand(pawl.Delete) }},
		{"heartbeats keep the claim", (*fixture).heartbeat},
		{"the job of a dead worker is rescued", (*fixture).rescue},
		{"the job of too many dead workers is buried", (*fixture).buriedByRescue},
		{"a soft stop waits for handlers", (*fixture).softStop},
		{"a hard stop ends handlers", (*fixture).hardStop},
		{"what a stop leaves is run by others", (*fixture).leftover},
		{"a stop hands back what has not started", (*fixture).stopHandsBack},
		{"a pause hands back what has not started", (*fixture).pauseHandsBack},
		{"weights share the slots", (*fixture).weights},
		{"concurrency changes while jobs run", (*fixture).concurrency},
		{"events tell what happens", (*fixture).events},
		{"an enqueue waits for room", (*fixture).room},
	}...)
	all = append(all, faultCases()...)
	if events {
		all = append(all, testCase{"events are hints", (*fixture).hints}, testCase{"no watch succeeds", (*fixture).blind})
	}
	if h.Begin != nil {
		all = append(all,
			testCase{"ack in a transaction", func(f *fixture) { f.ackInTx(true) }},
			testCase{"ack in a transaction that is rolled back", func(f *fixture) { f.ackInTx(false) }})
	}
	return all
}
