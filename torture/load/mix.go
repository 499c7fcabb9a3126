package load

import "math/rand/v2"

// A Way is how a job is enqueued.
type Way uint8

const (
	Single   Way = iota + 1
	Batch        // with others in one call
	Hurried      // with little time
	InTx         // in a transaction that also writes an order
	RollBack     // in one that is rolled back
)

// A Mix is a distribution of classes and ways.
type Mix struct {
	Tx     bool // the storage has transactions
	Deadly int  // how many in a million jobs are Exiter or Poison
}

// shares are out of 1,000; the rest is Plain.
var shares = []struct {
	class Class
	share int
}{
	{Urgent, 60}, {Delayed, 60}, {Flaky, 50}, {Hopeless, 15}, {Permanent, 15}, {Snoozer, 25}, {Panicker, 10},
	{Goexiter, 10}, {Slow, 1}, {Keyed, 40}, {Gone, 80}, {Canceled, 10}, {Manual, 8},
}

// Class draws a class.
func (m Mix) Class(r *rand.Rand) Class {
	if n := r.IntN(1_000_000); n < m.Deadly {
		return Exiter + Class(n%3/2)
	}
	n := r.IntN(1000)
	rest := n
	for _, s := range shares {
		if n -= s.share; n < 0 {
			return s.class
		}
	}
	if m.Tx && rest%16 == 0 {
		return TxAck + Class(r.IntN(4)/3)
	}
	return Plain
}

// Way draws a way.
func (m Mix) Way(r *rand.Rand) Way {
	switch n := r.IntN(100); {
	case n < 45:
		return Single
	case n < 70 || !m.Tx && n < 96:
		return Batch
	case n < 73 || !m.Tx:
		return Hurried
	case n < 93:
		return InTx
	default:
		return RollBack
	}
}
