package history

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// A Writer appends events to the file of a process. It may be used by several
// goroutines.
type Writer struct{ f *os.File }

// Create begins the file of a process in a folder.
func Create(dir, process string) (*Writer, error) {
	f, err := os.OpenFile(filepath.Join(dir, process+suffix), os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o600)
	return &Writer{f}, err
}

const suffix = ".events"

// Write appends events, those without a time with the present one, in one write: a
// process that is killed in it leaves whole events and at most a part of one. It
// panics if the file can't be written, since the run is worth nothing then.
func (w *Writer) Write(events ...Event) {
	if len(events) == 0 {
		return
	}
	now := Now()
	b := make([]byte, len(events)*Size)
	for i := range events {
		if events[i].At == 0 {
			events[i].At = now
		}
		events[i].put(b[i*Size:])
	}
	if _, err := w.f.Write(b); err != nil {
		panic(fmt.Errorf("history: %w", err))
	}
}

// Close closes the file.
func (w *Writer) Close() error { return w.f.Close() }

// Processes lists the processes that have files in a folder.
func Processes(dir string) ([]string, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*"+suffix))
	for i, name := range names {
		base := filepath.Base(name)
		names[i] = base[:len(base)-len(suffix)]
	}
	return names, err
}

// Read calls f with each event of a process. It ends silently at an event that was
// torn by the end of the process.
func Read(dir, process string, f func(Event)) error {
	file, err := os.Open(filepath.Join(dir, process+suffix))
	if err != nil {
		return err
	}
	defer file.Close()
	in := bufio.NewReaderSize(file, 1<<20)
	var b [Size]byte
	var e Event
	for {
		switch _, err := io.ReadFull(in, b[:]); {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return nil
		case err != nil:
			return err
		}
		if !e.get(b[:]) {
			return fmt.Errorf("history: %s holds what is no event", process)
		}
		f(e)
	}
}
