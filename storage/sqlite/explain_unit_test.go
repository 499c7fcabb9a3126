package sqlite

import (
	"errors"
	"strings"
	"testing"
)

// coded is an error of a driver.
type coded int

func (c coded) Error() string { return "driver" }

func (c coded) Code() int { return int(c) }

func TestExplain(t *testing.T) {
	for code, want := range map[coded]error{
		codeFull: ErrDiskFull, codeShmSize: ErrDiskFull, codeReadOnly: ErrReadOnly, codeCorrupt: ErrNotDatabase,
	} {
		if err := explain("open", code); !errors.Is(err, want) || !errors.Is(err, code) {
			t.Errorf("code %d: got %v, want %v and the driver's", code, err, want)
		}
	}
	err := explain("open", coded(codeCantOpen))
	if !strings.Contains(err.Error(), "folder") || errors.Is(err, ErrReadOnly) || !errors.Is(err, coded(codeCantOpen)) {
		t.Errorf("got %v, want a hint at the folder and the driver's error", err)
	}
}
