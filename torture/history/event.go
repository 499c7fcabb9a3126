// Package history is what processes of a torture run write about what they do, in
// such a way that it survives their being killed: events of one size, in one file
// for each process, with one write for each event or group of them, and stamped by
// a clock that is the same for all processes and that nobody sets.
package history

import (
	"encoding/binary"
	"fmt"

	"github.com/pawlq/pawl"
)

// A Kind is the sort of an Event. The comments say what its fields A and B are.
type Kind uint8

const (
	// Of producers, about a request.
	Intend     Kind = iota + 1 // it will be enqueued; A: class, B: way
	Accepted                   // the storage said yes; A: status of the receipt
	Unknown                    // an error that says nothing
	Refused                    // an error that says that nothing changed
	RolledBack                 // its transaction was ended without a commit
	Resolved                   // enqueued again, until there was an answer; A: its status

	// Of a worker's storage, about a claim.
	Claimed  // A: packed counts; B: end of the lease in µs, by the storage's clock
	Offered  // an outcome was sent; A: verb, B: delay in ns
	Settled  // it was accepted
	Lost     // it was refused
	Open     // nothing is known about it
	Stale    // as Offered, of a claim that is known to be over: A: verb
	Forgiven // as Settled, but of a Stale: must not be
	Fenced   // a Stale was refused
	Extended // A: when it was sent in µs by the wall clock, B: lease in ns

	// Of a handler.
	Start   // A: run_at in µs by the storage's clock, B: claimed_at
	Corrupt // the job is not what was enqueued

	// Of a process.
	Began   // A: when in µs by the wall clock, Fence: the process's own number
	Stopped // in an orderly way; A: 1 if not all came to rest. Fence: when, in µs by the wall clock

	// Of the controller; A and B as there.
	Fault   // A: sort, B: process or 0
	Down    // the server can't be reached from now
	Up      // and now it can
	Counted // a sample of the numbers of a queue, A: before, B: total

	// Of a worker process.
	Late     // something took long that should not, since At until Fence, in µs by the wall clock
	Measured // A: memory in bytes, B: goroutines, Fence: open files
	Left     // after all was closed; A: goroutines and B: open files more than before it was opened
)

var names = [...]string{Intend: "intend", Accepted: "accepted", Unknown: "unknown", Refused: "refused", RolledBack: "rolled back",
	Resolved: "resolved", Claimed: "claimed", Offered: "offered", Settled: "settled", Lost: "lost", Open: "open", Stale: "stale",
	Forgiven: "forgiven", Fenced: "fenced", Extended: "extended", Start: "start", Corrupt: "corrupt", Began: "began", Stopped: "stopped",
	Fault: "fault", Down: "down", Up: "up", Counted: "counted", Late: "late", Measured: "measured",
	Left: "left"}

func (k Kind) String() string {
	if int(k) >= len(names) || names[k] == "" {
		return fmt.Sprintf("kind(%d)", uint8(k))
	}
	return names[k]
}

// Size is how long an event is in a file.
const Size = 56

// An Event is what happened at one moment. ID and Fence are of the job's claim, if
// it is about one.
type Event struct {
	At    int64 // ns, see Now
	ID    pawl.ID
	Fence int64
	A, B  int64
	Kind  Kind
}

func (e *Event) put(b []byte) {
	binary.LittleEndian.PutUint64(b, uint64(e.At))
	copy(b[8:], e.ID[:])
	binary.LittleEndian.PutUint64(b[24:], uint64(e.Fence))
	binary.LittleEndian.PutUint64(b[32:], uint64(e.A))
	binary.LittleEndian.PutUint64(b[40:], uint64(e.B))
	b[48] = byte(e.Kind)
	b[55] = end
}

// end is the last byte of each event, so that one that was torn is seen.
const end = 0xa5

func (e *Event) get(b []byte) (ok bool) {
	e.At = int64(binary.LittleEndian.Uint64(b))
	copy(e.ID[:], b[8:])
	e.Fence = int64(binary.LittleEndian.Uint64(b[24:]))
	e.A = int64(binary.LittleEndian.Uint64(b[32:]))
	e.B = int64(binary.LittleEndian.Uint64(b[40:]))
	e.Kind = Kind(b[48])
	return b[55] == end
}

// Pack puts the counts of a job in one number, as far as they go: 255 of each but
// the extends, which are left out.
func Pack(c pawl.Counts) int64 {
	n := int64(0)
	for _, v := range []int{c.Retries, c.Rescues, c.Releases, c.Snoozes, c.Skips, c.Kicks} {
		n = n<<8 | int64(min(v, 255))
	}
	return n
}

// Sum adds up packed counts.
func Sum(packed int64) (n int) {
	for ; packed > 0; packed >>= 8 {
		n += int(packed & 255)
	}
	return n
}
