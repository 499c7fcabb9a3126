package storagetest

import (
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/pawlq/pawl"
)

// Defaults that [Complete] fills in.
const (
	DefaultAttempts  = 25
	DefaultRescues   = 5
	DefaultTimeout   = 30 * time.Minute
	DefaultRetention = 24 * time.Hour
)

// Complete returns a copy of r in which no field that a storage needs is left
// at its default, as a [pawl.Queue] hands it on: a storage may be given nothing
// else.
func Complete(r pawl.Request) *pawl.Request {
	if r.ID == (pawl.ID{}) {
		r.ID = newID()
	}
	r.Queue = or(r.Queue, "default")
	r.Kind = or(r.Kind, "kind")
	r.Timeout = or(r.Timeout, DefaultTimeout)
	r.MaxAttempts = or(r.MaxAttempts, DefaultAttempts)
	r.MaxRescues = or(r.MaxRescues, DefaultRescues)
	r.Retention = or(r.Retention, DefaultRetention)
	r.MaxDepth = or(r.MaxDepth, pawl.Unlimited)
	return &r
}

func or[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

// newID panics only if the system has no randomness left, and then no test
// means anything.
func newID() pawl.ID { return uuid.Must(uuid.NewV7()) }

func newToken() int64 { return rand.Int64() }
