package linear

import (
	"testing"

	"github.com/anishathalye/porcupine"

	"github.com/pawlq/pawl"
)

// TestModel asks the model about histories of a few calls.
func TestModel(t *testing.T) {
	stored := operation{call{verb: enqueue, jobs: []int{0}}, reply{receipts: []receipt{{pawl.Stored, 0}}}}
	claimed := func(fence int64, attempt int) operation {
		return operation{call{verb: claim, most: 1}, reply{jobs: []view{{state: pawl.Running, fence: fence, attempt: attempt, leaseUntil: lease.Microseconds()}}}}
	}
	settled := func(fence int64, v pawl.Verb, lost bool) operation {
		return operation{call{verb: settle, jobs: []int{0}, fence: fence, outcome: v}, reply{no: lost}}
	}
	none := operation{call{verb: claim, most: 1}, reply{}}
	late := func(o operation) operation { o.now = lease.Microseconds(); return o }
	rescued := late(operation{call{verb: sweep, jobs: []int{0}}, reply{rescued: []int64{7}}})
	key := func(j int, r receipt) operation {
		return operation{call{verb: enqueue, jobs: []int{j}}, reply{receipts: []receipt{r}}}
	}
	for name, c := range map[string]struct {
		calls []operation
		want  bool
	}{
		"one run":                   {[]operation{stored, claimed(7, 1), settled(7, pawl.Ack, false), none}, true},
		"claimed twice":             {[]operation{stored, claimed(7, 1), claimed(8, 2)}, false},
		"not found":                 {[]operation{stored, none}, false},
		"stale ack":                 {[]operation{stored, claimed(7, 1), settled(7, pawl.Release, false), settled(7, pawl.Ack, false)}, false},
		"stale ack refused":         {[]operation{stored, claimed(7, 1), settled(7, pawl.Release, false), settled(7, pawl.Ack, true)}, true},
		"repeated":                  {[]operation{stored, claimed(7, 1), settled(7, pawl.Ack, false), settled(7, pawl.Ack, false)}, true},
		"fence again":               {[]operation{stored, claimed(7, 1), settled(7, pawl.Release, false), claimed(7, 1)}, false},
		"rescued":                   {[]operation{stored, claimed(7, 1), rescued, settled(7, pawl.Ack, true)}, true},
		"acked and rescued":         {[]operation{stored, claimed(7, 1), settled(7, pawl.Ack, false), rescued}, false},
		"rescued early":             {[]operation{stored, claimed(7, 1), {call{verb: sweep, jobs: []int{0}}, reply{rescued: []int64{7}}}}, false},
		"extended and rescued":      {[]operation{stored, claimed(7, 1), late(operation{call{verb: extend, jobs: []int{0}, fence: 7}, reply{}}), rescued}, false},
		"two holders of a key":      {[]operation{key(2, receipt{pawl.Stored, 2}), key(3, receipt{pawl.Stored, 3})}, false},
		"a duplicate":               {[]operation{key(2, receipt{pawl.Stored, 2}), key(3, receipt{pawl.Duplicate, 2})}, true},
		"a duplicate of nobody":     {[]operation{key(3, receipt{pawl.Duplicate, 2})}, false},
		"seen after it was deleted": {[]operation{stored, {call{verb: change, jobs: []int{0}, change: pawl.Delete}, reply{status: pawl.Done}}, {call{verb: get, jobs: []int{0}}, reply{jobs: []view{{state: pawl.Ready}}}}}, false},
	} {
		var calls []porcupine.Operation
		for i := range c.calls {
			o := &c.calls[i]
			calls = append(calls, porcupine.Operation{Input: &o.call, Output: &o.reply, Call: int64(2 * i), Return: int64(2*i + 1)})
		}
		if got := porcupine.CheckOperations(model(&Subject{}), calls); got != c.want {
			t.Errorf("%s: an order was found is %v, want %v", name, got, c.want)
		}
	}
}

// TestLooks cuts enqueues into what they have looked at, and leaves those whole that are
// not in order.
func TestLooks(t *testing.T) {
	for name, c := range map[string]struct {
		jobs     []int
		receipts []receipt
		parts    int
	}{
		"one":              {[]int{0}, []receipt{{pawl.Stored, 0}}, 1},
		"stored at once":   {[]int{0, 1}, []receipt{{pawl.Stored, 0}, {pawl.Stored, 1}}, 1},
		"exists, stored":   {[]int{0, 1}, []receipt{{pawl.Exists, 0}, {pawl.Stored, 1}}, 2},
		"one twice":        {[]int{0, 0}, []receipt{{pawl.Stored, 0}, {pawl.Exists, 0}}, 2},
		"duplicate":        {[]int{2, 3}, []receipt{{pawl.Stored, 2}, {pawl.Duplicate, 2}}, 2},
		"one behind":       {[]int{2, 3}, []receipt{{pawl.Duplicate, 3}, {pawl.Stored, 3}}, 1},
		"gone in between":  {[]int{0, 0}, []receipt{{pawl.Exists, 0}, {pawl.Stored, 0}}, 1},
		"free in between":  {[]int{2, 2}, []receipt{{pawl.Duplicate, 3}, {pawl.Stored, 2}}, 2},
		"exists then dupl": {[]int{2, 2}, []receipt{{pawl.Exists, 2}, {pawl.Duplicate, 3}}, 1},
	} {
		o := operation{call{verb: enqueue, jobs: c.jobs}, reply{receipts: c.receipts}}
		if parts := o.looks(); len(parts) != c.parts {
			t.Errorf("%s: %d parts, want %d: %v", name, len(parts), c.parts, parts)
		}
	}
}
