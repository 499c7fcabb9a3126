package check

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// A Drift is how much memory a process had, in the median of the second and of the last
// quarter of its life.
type Drift struct {
	Process      string
	Samples      int
	Second, Last int64
}

func (d Drift) String() string {
	return fmt.Sprintf("%s: %.1f MB, in the end %.1f MB (%+.1f %%)", d.Process, float64(d.Second)/1e6, float64(d.Last)/1e6, d.Percent())
}

// Percent is the growth.
func (d Drift) Percent() float64 { return 100 * (float64(d.Last)/float64(d.Second) - 1) }

// Telling reports whether the process has lived for so long that its second quarter began when it
// was warm, so that a growth is one.
func (d Drift) Telling() bool { return d.Samples >= longSamples }

// judgeMemory keeps the drift of those who lived for long.
func (c *checker) judgeMemory() {
	for _, name := range slices.Sorted(maps.Keys(c.memory)) {
		m := c.memory[name]
		n := len(m)
		if n < leastSamples {
			continue
		}
		d := Drift{name, n, median(m[n/4 : n/2]), median(m[n*3/4:])}
		c.r.Memory = append(c.r.Memory, d)
		if d.Telling() && d.Percent() > mostDrift {
			c.r.add(Leaks, "memory of %v", d)
		}
	}
	slices.SortFunc(c.r.Memory, func(a, b Drift) int { return cmp.Compare(b.Samples, a.Samples) })
	c.r.Memory = c.r.Memory[:min(len(c.r.Memory), 2)]
}

const (
	// leastSamples is what a drift is taken of; there is a sample each second or so.
	leastSamples = 20
	// longSamples is how many there must be for a growth to mean something, and
	// mostDrift what it may be then, in percent.
	longSamples = 550
	mostDrift   = 5
)

func median(all []int64) int64 {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}
