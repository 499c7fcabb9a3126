package check

import (
	"time"

	"github.com/google/uuid"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/torture/history"
	"github.com/pawlq/pawl/torture/load"
)

// tales are runs and what is to be found in them.
var tales = []struct {
	name string
	tell func(*tale)
	want []string // the invariants that do not hold
}{
	{"completed", func(x *tale) { x.completed(load.Plain, load.Single, 100) }, nil},
	{"exactly", func(x *tale) { x.in.Exact = true; x.completed(load.Plain, load.Single, 100) }, nil},
	{"rescued", func(x *tale) { x.rescued(1500, 2900) }, nil},
	{"accepted and not there", func(x *tale) { x.enqueued(load.Plain, load.Single, 100) }, []string{Lost}},
	{"in the wrong state", func(x *tale) {
		s := x.enqueued(load.Plain, load.Single, 100)
		s.ends(pawl.Canceled, pawl.ReasonCancel, pawl.Counts{})
	}, []string{Lost}},
	{"gone without an ack", func(x *tale) {
		x.enqueued(load.Gone, load.Single, 100).claimed("worker-1", 1, 120, pawl.Counts{})
	}, []string{Lost}},
	{"gone by an ack", func(x *tale) {
		s := x.enqueued(load.Gone, load.Single, 100)
		s.claimed("worker-1", 1, 120, pawl.Counts{})
		s.settles("worker-1", pawl.Ack, history.Settled, 1, 130)
	}, nil},
	{"gone, and its ack was refused", func(x *tale) {
		s := x.enqueued(load.Gone, load.Single, 100)
		s.claimed("worker-1", 1, 120, pawl.Counts{})
		s.settles("worker-1", pawl.Ack, history.Lost, 1, 130)
	}, []string{Lost}},
	{"gone, and only its order is there", func(x *tale) {
		s := x.intended(load.Gone, load.InTx, 100)
		s.answer(history.Unknown, 0, 110)
		x.in.Orders = map[pawl.ID]int{s.id: 1}
	}, []string{Lost}},
	{"gone after it ran twice under a claim", func(x *tale) {
		s := x.enqueued(load.Gone, load.Single, 100)
		s.claimed("worker-1", 1, 120, pawl.Counts{})
		x.say("worker-1", history.Event{Kind: history.Start, At: 121 * ms, ID: s.id, Fence: 1})
		s.settles("worker-1", pawl.Ack, history.Settled, 1, 130)
	}, []string{Executions}},
	{"gone, and claimed after its ack", func(x *tale) {
		s := x.enqueued(load.Gone, load.Single, 100)
		s.claimed("worker-1", 1, 120, pawl.Counts{})
		s.settles("worker-1", pawl.Ack, history.Settled, 1, 130)
		s.claimed("worker-2", 2, 200, pawl.Counts{Releases: 1})
	}, []string{Final}},
	{"gone, and an older claim's ack was believed", func(x *tale) {
		s := x.enqueued(load.Gone, load.Single, 1500)
		s.claimed("worker-3", 1, 1520, pawl.Counts{})
		s.claimed("worker-1", 2, 2900, pawl.Counts{Rescues: 1})
		s.settles("worker-1", pawl.Ack, history.Settled, 2, 2905)
		s.settles("worker-3", pawl.Ack, history.Open, 1, 2500)
		s.settles("worker-3", pawl.Ack, history.Settled, 1, 2950)
	}, nil},
	{"gone, and enqueued again", func(x *tale) {
		s := x.intended(load.Gone, load.Single, 100)
		s.answer(history.Unknown, 0, 110)
		s.claimed("worker-1", 1, 120, pawl.Counts{})
		s.settles("worker-1", pawl.Ack, history.Settled, 1, 130)
		s.answer(history.Resolved, pawl.Stored, 200)
		s.claimed("worker-1", 2, 210, pawl.Counts{})
		s.settles("worker-1", pawl.Ack, history.Settled, 2, 220)
	}, nil},
	{"order without its job", func(x *tale) {
		s := x.intended(load.Plain, load.InTx, 100)
		s.answer(history.Unknown, 0, 110)
		x.in.Orders = map[pawl.ID]int{s.id: 1}
	}, []string{Lost}},
	{"committed twice", func(x *tale) {
		s := x.completed(load.Plain, load.InTx, 100)
		x.in.Orders = map[pawl.ID]int{s.id: 2}
	}, []string{Lost}},
	{"job without its order", func(x *tale) {
		x.completed(load.Plain, load.InTx, 100)
		x.in.Orders = map[pawl.ID]int{}
	}, []string{Ghost}},
	{"of a transaction that was rolled back", func(x *tale) {
		s := x.intended(load.Plain, load.RollBack, 100)
		s.answer(history.RolledBack, 0, 110)
		s.claimed("worker-1", 1, 120, pawl.Counts{})
	}, []string{Ghost}},
	{"of nobody", func(x *tale) { (&subject{x: x, id: uuid.Must(uuid.NewV7())}).ends(pawl.Ready, "", pawl.Counts{}) }, []string{Ghost}},
	{"never resolved", func(x *tale) { x.intended(load.Plain, load.Single, 100).answer(history.Unknown, 0, 110) }, []string{Unresolved}},
	{"resolved by another process", func(x *tale) {
		s := x.intended(load.Plain, load.Single, 100)
		s.answer(history.Unknown, 0, 110)
		x.say("controller", history.Event{Kind: history.Resolved, At: 150 * ms, ID: s.id, A: int64(pawl.Stored)})
		s.claimed("worker-1", 1, 160, pawl.Counts{})
		s.settles("worker-1", pawl.Ack, history.Settled, 1, 170)
		s.ends(pawl.Completed, "", pawl.Counts{})
	}, nil},
	{"stored twice", func(x *tale) {
		x.completed(load.Plain, load.Single, 100).answer(history.Resolved, pawl.Stored, 200)
	}, []string{Unresolved}},
	{"ran more often than it counts", func(x *tale) {
		x.rescued(1500, 2900).j.Counts.Rescues = 0
	}, []string{Executions}},
	{"claimed more often than a claim counts", func(x *tale) {
		s := x.enqueued(load.Plain, load.Single, 100)
		s.claimed("worker-1", 1, 120, pawl.Counts{})
		s.claimed("worker-2", 2, 1200, pawl.Counts{})
		s.settles("worker-2", pawl.Ack, history.Settled, 2, 1210)
		s.ends(pawl.Completed, "", pawl.Counts{Rescues: 1})
	}, []string{Executions}},
	{"ran twice under a claim", func(x *tale) {
		s := x.completed(load.Plain, load.Single, 100)
		s.x.say("worker-1", history.Event{Kind: history.Start, At: 121 * ms, ID: s.id, Fence: 1})
	}, []string{Executions}},
	{"less often, without faults", func(x *tale) {
		x.in.Exact = true
		x.completed(load.Plain, load.Single, 100).j.Counts.Retries = 1
	}, []string{Executions}},
	{"a fence for two", func(x *tale) {
		s := x.completed(load.Plain, load.Single, 100)
		s.x.say("worker-2", history.Event{Kind: history.Claimed, At: 125 * ms, ID: s.id, Fence: 1})
	}, []string{Claims}},
	{"a stale outcome that was accepted", func(x *tale) {
		x.rescued(1500, 2900).settles("worker-3", pawl.Nack, history.Settled, 1, 2950)
	}, []string{StaleWrite}},
	{"one that was sent before", func(x *tale) {
		x.rescued(1500, 2900).settles("worker-3", pawl.Nack, history.Settled, 1, 2899)
	}, nil},
	{"a stale extension that was accepted", func(x *tale) {
		s := x.rescued(1500, 2900)
		x.say("worker-3", history.Event{Kind: history.Extended, At: 2950 * ms, ID: s.id, Fence: 1, A: 1_000_000})
	}, []string{StaleWrite}},
	{"an offered stale outcome that was accepted", func(x *tale) {
		s := x.completed(load.Plain, load.Single, 100)
		x.say("worker-2", history.Event{Kind: history.Forgiven, At: 200 * ms, ID: s.id, Fence: 1, A: int64(pawl.Nack)})
	}, []string{StaleWrite}},
	{"claimed again under the lease", func(x *tale) { x.rescued(1500, 2400) }, []string{Overlap}},
	{"claimed again under the lease of one who was refused", func(x *tale) {
		x.rescued(1500, 2400).settles("worker-3", pawl.Ack, history.Lost, 1, 2450)
	}, []string{Overlap}},
	{"claimed again under the lease of one who may have settled", func(x *tale) {
		x.rescued(1500, 2400).settles("worker-3", pawl.Ack, history.Open, 1, 1990)
	}, nil},
	{"claimed again under an extended lease", func(x *tale) {
		s := x.rescued(1500, 2900)
		x.say("worker-3", history.Event{Kind: history.Extended, At: 1900 * ms, ID: s.id, Fence: 1, A: 1_950_000, B: int64(time.Second)})
	}, []string{Overlap}},
	{"claimed again under the lease, and not begun", func(x *tale) {
		s := x.enqueued(load.Plain, load.Single, 1500)
		s.claimed("worker-3", 1, 1520, pawl.Counts{})
		x.say("worker-1", history.Event{Kind: history.Claimed, At: 2400 * ms, ID: s.id, Fence: 2, A: history.Pack(pawl.Counts{Rescues: 1}), B: 3_400_000})
		s.settles("worker-1", pawl.Ack, history.Settled, 2, 2410)
		s.ends(pawl.Completed, "", pawl.Counts{Rescues: 1})
	}, []string{Overlap}},
	{"claimed after its end", func(x *tale) {
		x.completed(load.Plain, load.Single, 100).claimed("worker-2", 2, 200, pawl.Counts{})
	}, []string{Executions, Final}},
	{"an ack without its effect", func(x *tale) {
		x.completed(load.TxAck, load.Single, 100)
		x.in.Orders, x.in.Effects = map[pawl.ID]int{}, map[pawl.ID]int{}
	}, []string{Effects}},
	{"two effects", func(x *tale) {
		s := x.completed(load.TxAck, load.Single, 100)
		x.in.Orders, x.in.Effects = map[pawl.ID]int{}, map[pawl.ID]int{s.id: 2}
	}, []string{Effects}},
	{"started too early", func(x *tale) { x.completed(load.Delayed, load.Single, 100) }, []string{Early}},
	{"retried too early", func(x *tale) {
		s := x.enqueued(load.Plain, load.Single, 100)
		s.claimed("worker-1", 1, 120, pawl.Counts{})
		x.say("worker-1", history.Event{Kind: history.Offered, At: 130 * ms, ID: s.id, Fence: 1, A: int64(pawl.Nack), B: 50 * ms},
			history.Event{Kind: history.Settled, At: 131 * ms, ID: s.id, Fence: 1, A: int64(pawl.Nack)})
		s.claimed("worker-1", 2, 150, pawl.Counts{Retries: 1})
		s.settles("worker-1", pawl.Ack, history.Settled, 2, 160)
		s.ends(pawl.Completed, "", pawl.Counts{Retries: 1})
	}, []string{Early}},
	{"rescued too late", func(x *tale) { x.rescued(1500, 4000) }, []string{Recovery}},
	{"rescued late after an outage", func(x *tale) {
		x.rescued(1500, 4000)
		x.say("controller", history.Event{Kind: history.Down, At: 2500 * ms, Fence: 2_500_000},
			history.Event{Kind: history.Up, At: 3900 * ms, Fence: 3_900_000})
	}, nil},
	{"extended while it was rescued, where that may be", func(x *tale) {
		x.in.Hopeful = true
		s := x.rescued(1500, 2900)
		x.say("worker-3", history.Event{Kind: history.Extended, At: 1900 * ms, ID: s.id, Fence: 1, A: 1_950_000, B: int64(time.Second)})
	}, nil},
	{"extended while it was rescued, without faults", func(x *tale) {
		x.in.Hopeful, x.in.Exact = true, true
		s := x.rescued(1500, 2900)
		x.say("worker-3", history.Event{Kind: history.Extended, At: 1950 * ms, ID: s.id, Fence: 1, A: 1_950_000, B: int64(time.Second)})
	}, []string{Overlap}},
	{"rescued late while another stood still", func(x *tale) {
		x.rescued(1500, 4000)
		x.say("controller", history.Event{Kind: history.Fault, At: 2100 * ms, A: int64(Paused), B: 1, Fence: 3_500_000})
	}, nil},
	{"rescued after an outage", func(x *tale) {
		x.rescuedFrom("worker-2", 1500, 2900)
		x.say("controller", history.Event{Kind: history.Down, At: 1600 * ms, Fence: 1_600_000},
			history.Event{Kind: history.Up, At: 2500 * ms, Fence: 2_500_000})
	}, nil},
	{"rescued after an outage before the claim", func(x *tale) {
		x.in.Grace = 5 * time.Second
		x.rescuedFrom("worker-2", 1500, 2900)
		x.say("controller", history.Event{Kind: history.Down, At: 1000 * ms, Fence: 1_000_000},
			history.Event{Kind: history.Up, At: 1400 * ms, Fence: 1_400_000})
	}, []string{Attribution}},
	{"rescued after a pause before the last extension", func(x *tale) {
		x.in.Grace = 5 * time.Second
		s := x.rescuedFrom("worker-2", 1500, 3900)
		x.say("worker-2", history.Event{Kind: history.Extended, At: 2400 * ms, ID: s.id, Fence: 1, A: 2_400_000, B: int64(time.Second)})
		x.say("controller", history.Event{Kind: history.Fault, At: 1600 * ms, A: int64(Paused), B: 2, Fence: 2_300_000})
	}, []string{Attribution}},
	{"rescued more often than jobs tell", func(x *tale) {
		x.completed(load.Plain, load.Single, 100).j.Counts.Rescues = 3
	}, []string{Attribution}},
	{"rescued though nothing was wrong", func(x *tale) { x.rescuedFrom("worker-2", 1500, 2900) }, []string{Attribution}},
	{"rescued after a pause", func(x *tale) {
		x.rescuedFrom("worker-2", 1500, 2900)
		x.say("controller", history.Event{Kind: history.Fault, At: 1600 * ms, A: int64(Paused), B: 2, Fence: 2_900_000})
	}, nil},
	{"rescued after a pause of another", func(x *tale) {
		x.rescuedFrom("worker-2", 1500, 2900)
		x.say("controller", history.Event{Kind: history.Fault, At: 1600 * ms, A: int64(Paused), B: 1, Fence: 2_900_000})
	}, []string{Attribution}},
	{"rescued after a cut that did not matter", func(x *tale) {
		x.rescuedFrom("worker-2", 1500, 2900)
		x.say("controller", history.Event{Kind: history.Fault, At: 1600 * ms, A: int64(Cut), Fence: 1_700_000})
	}, []string{Attribution}},
	{"rescued after a cut in a settle", func(x *tale) {
		x.rescuedFrom("worker-2", 1500, 2900).settles("worker-2", pawl.Ack, history.Open, 1, 1600)
		x.say("controller", history.Event{Kind: history.Fault, At: 1601 * ms, A: int64(Cut), Fence: 1_700_000})
	}, nil},
	{"rescued after a call that took long", func(x *tale) {
		x.rescuedFrom("worker-2", 1500, 2900)
		x.say("worker-2", history.Event{Kind: history.Late, At: 1600 * ms, Fence: 2_600_000})
	}, nil},
	{"too many runs in vain", func(x *tale) {
		x.in.Slots, x.in.Buffer, x.in.Owed = 1, 1, 100
		for range 3 {
			x.rescued(1500, 2900)
		}
	}, []string{Attribution}},
	{"too many runs in vain, and another death that had none", func(x *tale) {
		x.say("producer-9", history.Event{Kind: history.Began, At: ms, Fence: 9, A: ms / 1000})
		x.say("controller", history.Event{Kind: history.Fault, At: 2500 * ms, A: int64(Died), B: 9, Fence: 2_500_000})
		x.in.Slots, x.in.Buffer, x.in.Owed = 1, 1, 100
		for range 3 {
			x.rescued(1500, 2900)
		}
	}, []string{Attribution}},
	{"too many runs in vain for one death", func(x *tale) {
		x.in.Slots, x.in.Buffer, x.in.Owed = 1, 100, 1
		for range 3 {
			x.rescued(1500, 2900)
		}
	}, []string{Attribution}},
	{"something left open", func(x *tale) { x.say("worker-1", history.Event{Kind: history.Left, At: 3000 * ms, B: 1}) }, []string{Leaks}},
	{"nothing left open", func(x *tale) { x.say("worker-1", history.Event{Kind: history.Left, At: 3000 * ms, A: -1}) }, nil},
	{"too few in a count", func(x *tale) {
		x.completed(load.Plain, load.Single, 100)
		x.say("controller", history.Event{Kind: history.Counted, At: 200 * ms, Fence: 210 * ms, A: 0})
	}, []string{Counts}},
	{"too many in a count", func(x *tale) {
		x.completed(load.Plain, load.Single, 100)
		x.say("controller", history.Event{Kind: history.Counted, At: 20 * ms, Fence: 30 * ms, A: 1})
	}, []string{Counts}},
	{"two with a key", func(x *tale) {
		first := x.enqueued(load.Keyed, load.Single, 100)
		first.ends(pawl.Completed, "", pawl.Counts{})
		second := x.enqueued(load.Keyed, load.Single, 200)
		for load.Key(second.id) != load.Key(first.id) {
			second.ends(pawl.Completed, "", pawl.Counts{})
			second = x.enqueued(load.Keyed, load.Single, 200)
		}
		second.ends(pawl.Completed, "", pawl.Counts{})
	}, []string{Unique}},
	{"an innocent buried", func(x *tale) {
		s := x.enqueued(load.Plain, load.Single, 100)
		s.ends(pawl.Buried, pawl.ReasonRescues, pawl.Counts{Rescues: 5})
		s.tells(6)
	}, []string{Buried}},
	{"a killer buried too late", func(x *tale) {
		s := x.enqueued(load.Poison, load.Single, 100)
		s.ends(pawl.Buried, pawl.ReasonRescues, pawl.Counts{Rescues: load.PoisonRescues + 1})
		s.tells(load.PoisonRescues + 2)
	}, []string{Buried}},
	{"left by a worker that stopped in order", func(x *tale) {
		x.rescued(1500, 2900)
		x.say("worker-3", history.Event{Kind: history.Stopped, At: 2000 * ms, Fence: 2_000_000})
	}, []string{Stop}},
	{"a change that must not be", func(x *tale) { x.in.Illegal = []string{"4 to 2"} }, []string{Transition}},
	{"a witness that was blind", func(x *tale) {
		x.completed(load.Plain, load.Single, 100)
		x.in.Witnessed = true
	}, []string{Transition}},
	{"completed twice", func(x *tale) { x.in.Twice = []pawl.ID{{}} }, []string{Transition}},
	{"orphans", func(x *tale) { x.in.Orphans = []string{"1 payload"} }, []string{Orphans}},
	{"another payload", func(x *tale) {
		s := x.completed(load.Plain, load.Single, 100)
		x.say("worker-1", history.Event{Kind: history.Corrupt, At: 122 * ms, ID: s.id, Fence: 1})
	}, []string{Payload}},
	{"not ended", func(x *tale) {
		x.in.Waiting = 1
		x.enqueued(load.Plain, load.Single, 100).ends(pawl.Ready, "", pawl.Counts{})
	}, []string{Drain}},
}
