package storagetest

import (
	"strings"
	"testing"
	"time"

	"github.com/pawlq/pawl"
)

// TestFreedoms runs what the contract says of claims on correct storages that differ in what the
// contract leaves open: which of Sweep's work a Claim does, and when.
func TestFreedoms(t *testing.T) {
	purge := func(m *model, now time.Time) {
		for _, r := range m.where(func(r *record) bool { return r.over(0, now) }) {
			delete(m.jobs, r.ID)
		}
	}
	rescue := func(m *model, now time.Time) {
		for _, r := range m.where(func(r *record) bool { return r.abandoned(now) }) {
			r.rescue(now)
		}
	}
	nothing := func(*model, time.Time) {}
	for name, work := range map[string]struct{ before, after func(*model, time.Time) }{
		"nothing":        {nothing, nothing},
		"all before":     {func(m *model, now time.Time) { m.sweep(0, now) }, nothing},
		"all after":      {nothing, func(m *model, now time.Time) { m.sweep(0, now) }},
		"rescues before": {rescue, nothing},
		"rescues after":  {nothing, rescue},
		"promotion":      {func(m *model, now time.Time) { m.promote("", now) }, nothing},
		"expiry":         {func(m *model, now time.Time) { m.expire("", now) }, nothing},
		"purge":          {purge, nothing},
	} {
		t.Run(name, func(t *testing.T) {
			h := referenceHarness()
			h.Open = func(_ testing.TB, clock func() time.Time) pawl.Storage {
				s := newReference(clock)
				s.claim = func(spec pawl.ClaimSpec, now time.Time) []*pawl.Job {
					work.before(s.m, now)
					got := copies(s.m.claim(spec, now, nil))
					work.after(s.m, now)
					return got
				}
				return s
			}
			for _, g := range groups(traitsOf(t, h)) {
				for _, c := range g.cases {
					if g.name == "model" || g.name == "rules" && strings.Contains(c.says, "laim") {
						t.Run(g.name+"/"+c.name, func(t *testing.T) { c.check(t, h) })
					}
				}
			}
		})
	}
}
