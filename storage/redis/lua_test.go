package redis

import (
	"strings"
	"testing"
)

// TestWriteOut writes constants out and nothing else.
func TestWriteOut(t *testing.T) {
	got := writeOut("local A, sB =\n\t1, 22\nlocal n, C = 0, 3\nlocal T = {A}\n\tlocal A_ = 1\ncall('A', A, x.A, sB, AB) -- A\n")
	want := "\nlocal n, C = 0, 3\nlocal T = {1}\n\tlocal A_ = 1\ncall('A', 1, x.A, 22, AB) -- A\n"
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestAssemble leaves out what a script does not need.
func TestAssemble(t *testing.T) {
	for name, has := range map[string]bool{"enqueue": true, "count": false} {
		text := assemble(name)
		if strings.Contains(text, "local function flush(") != has || !strings.Contains(text, "local function open(") {
			t.Errorf("script %s has other functions than it needs:\n%s", name, text)
		}
		if strings.Contains(text, "RUNAT") || strings.Contains(text, "\n--") {
			t.Errorf("script %s has constants or lines of comments:\n%s", name, text)
		}
	}
}
