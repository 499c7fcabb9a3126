// Package load says what jobs a torture run is made of. All about a job follows
// from its ID and class, so that whoever knows these can enqueue it again, run it,
// and tell what should have become of it.
package load

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/pawlq/pawl"
)

// A Class is a sort of job, named by the job's kind.
type Class uint8

const (
	Plain     Class = iota + 1 // acked at once
	Urgent                     // with a priority
	Delayed                    // due later
	Flaky                      // fails once or twice
	Hopeless                   // fails until it is buried
	Permanent                  // fails once, for good
	Snoozer                    // asks to run again
	Panicker                   // panics once
	Goexiter                   // ends its goroutine once
	Slow                       // runs for longer than a lease
	Keyed                      // has one of few unique keys
	Gone                       // leaves no record
	Canceled                   // is due in an hour, and canceled
	Manual                     // claimed by hand
	TxAck                      // acked in a transaction with its effect
	TxRolled                   // so, but the first time that is rolled back
	Exiter                     // ends its process once
	Poison                     // ends each process that runs it
	numClasses
)

var names = [numClasses]string{"", "plain", "urgent", "delayed", "flaky", "hopeless", "permanent", "snoozer", "panicker",
	"goexiter", "slow", "keyed", "gone", "canceled", "manual", "txack", "txrolled", "exiter", "poison"}

func (c Class) String() string {
	if c == 0 || c >= numClasses {
		return fmt.Sprintf("class(%d)", uint8(c))
	}
	return names[c]
}

// ClassOf is the class of a kind, 0 if there is none.
func ClassOf(kind string) Class {
	for c := Plain; c < numClasses; c++ {
		if names[c] == kind {
			return c
		}
	}
	return 0
}

// Queues.
const (
	Main      = "main"   // of most jobs
	GoneQueue = "gone"   // of those that leave no record
	ByHand    = "manual" // of those claimed by hand
)

// Settings of some classes.
const (
	keys          = 40
	hopelessTries = 2
	PoisonRescues = 2
	// innocentRescues is more than the default: a worker is killed each second here,
	// whatever it runs, so that some jobs meet six deaths in a row.
	innocentRescues = 100
	canceledDelay   = time.Hour
	bigPayload      = 3000 // kept apart from the record by some storages
	bigPayloadOnce  = 16   // in so many jobs
)

// Hash is a number that follows from the ID.
func Hash(id pawl.ID) uint64 {
	h := binary.LittleEndian.Uint64(id[8:]) * 0x9e3779b97f4a7c15
	return h ^ h>>29
}

// Request is what is enqueued.
func Request(id pawl.ID, c Class) *pawl.Request {
	r := &pawl.Request{ID: id, Queue: Main, Kind: c.String(), Payload: Payload(id), Delay: Delay(id, c), MaxRescues: innocentRescues}
	switch c {
	case Urgent:
		r.Priority = int(Hash(id)%20) - 15
	case Hopeless:
		r.MaxAttempts = hopelessTries
	case Keyed:
		r.UniqueKey = Key(id)
	case Gone:
		r.Queue, r.Retention = GoneQueue, pawl.DeleteNow
	case Manual:
		r.Queue = ByHand
	case Poison:
		r.MaxRescues = PoisonRescues
	}
	return r
}

// Key is the unique key of a Keyed job.
func Key(id pawl.ID) string { return fmt.Sprintf("key-%d", Hash(id)%keys) }

// Delay is how long after its enqueue the job is due.
func Delay(id pawl.ID, c Class) time.Duration {
	switch c {
	case Delayed:
		return 50*time.Millisecond + time.Duration(Hash(id)%1_500_000)*time.Microsecond
	case Canceled:
		return canceledDelay
	default:
		return 0
	}
}

// Payload is the job's payload.
func Payload(id pawl.ID) []byte {
	h := Hash(id)
	n := 16 + h%100
	if h%bigPayloadOnce == 0 {
		n = bigPayload
	}
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(h >> (8 * (i % 8)))
	}
	copy(b, id[:])
	return b
}

// Fate is the state that the job must end in. A job of class Gone has none then.
func (c Class) Fate() pawl.State {
	switch c {
	case Hopeless, Permanent, Poison:
		return pawl.Buried
	case Canceled:
		return pawl.Canceled
	default:
		return pawl.Completed
	}
}

// Transactional reports whether the handler acks in a transaction of its own.
func (c Class) Transactional() bool { return c == TxAck || c == TxRolled }

// Deadly reports whether the job ends processes.
func (c Class) Deadly() bool { return c == Exiter || c == Poison }
