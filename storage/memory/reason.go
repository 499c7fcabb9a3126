package memory

import "github.com/pawlq/pawl"

// A reason is a pawl.Reason in one byte instead of sixteen.
type reason uint8

const (
	none reason = iota
	retry
	rescue
	release
	snooze
	skip
	attempts
	rescues
	bury
	cancel
	expired
	dropped
	numReasons
)

func (r reason) public() pawl.Reason {
	if r == none {
		return ""
	}
	return [numReasons]pawl.Reason{
		retry:    pawl.ReasonRetry,
		rescue:   pawl.ReasonRescue,
		release:  pawl.ReasonRelease,
		snooze:   pawl.ReasonSnooze,
		skip:     pawl.ReasonSkip,
		attempts: pawl.ReasonAttempts,
		rescues:  pawl.ReasonRescues,
		bury:     pawl.ReasonBury,
		cancel:   pawl.ReasonCancel,
		expired:  pawl.ReasonExpired,
		dropped:  pawl.ReasonDropped,
	}[r]
}
