package history

import (
	"time"

	"golang.org/x/sys/unix"
)

// Now reads the clock of the machine, in ns since it was started: the same for all
// processes, and no one can set it.
func Now() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // the clock is always there
	}
	return ts.Nano()
}

// Wall reads the wall clock, in µs: that of the machine, also in a process whose own
// is wrong.
func Wall() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME, &ts); err != nil {
		panic(err) // as above
	}
	return ts.Nano() / int64(time.Microsecond)
}
