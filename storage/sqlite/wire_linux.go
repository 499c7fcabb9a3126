package sqlite

import (
	"encoding/binary"
	"os"
	"syscall"
)

// wire is a trip-wire across a file: it tells of the next write to it, by
// whatever process, and costs nothing until then. It is for one goroutine.
type wire struct {
	fd     int
	events *os.File
	ended  chan struct{}
}

const (
	wireEvents = syscall.IN_MODIFY | syscall.IN_ATTRIB | syscall.IN_DELETE_SELF | syscall.IN_MOVE_SELF
	eventSize  = syscall.SizeofInotifyEvent
)

// newWire makes a wire that calls tripped, from a goroutine of its own.
func newWire(tripped func()) (*wire, error) {
	fd, err := syscall.InotifyInit1(syscall.IN_NONBLOCK | syscall.IN_CLOEXEC)
	if err != nil {
		return nil, err
	}
	w := &wire{fd: fd, events: os.NewFile(uintptr(fd), "inotify"), ended: make(chan struct{})}
	go w.listen(tripped) // close waits for it
	return w, nil
}

// set lays the wire across a file. It trips once, then it is gone: a process
// that writes itself all the time is not woken by what it writes.
func (w *wire) set(path string) error {
	_, err := syscall.InotifyAddWatch(w.fd, path, wireEvents|syscall.IN_ONESHOT)
	return err
}

func (w *wire) close() {
	_ = w.events.Close()
	<-w.ended
}

func (w *wire) listen(tripped func()) {
	defer close(w.ended)
	buf := make([]byte, 16*eventSize)
	for {
		n, err := w.events.Read(buf)
		if err != nil {
			return
		}
		if hasTripped(buf[:n]) {
			tripped()
		}
	}
}

// hasTripped tells events from the note that the wire is gone, which follows
// each. Events of a file have no name behind them.
func hasTripped(events []byte) bool {
	for ; len(events) >= eventSize; events = events[eventSize:] {
		if mask := binary.NativeEndian.Uint32(events[4:]); mask&wireEvents != 0 {
			return true
		}
	}
	return false
}
