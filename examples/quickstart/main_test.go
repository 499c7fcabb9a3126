package main

import (
	"io"
	"os"
	"testing"
)

// TestMainTwice runs the program twice: the second run finds the file of the
// first.
func TestMainTwice(t *testing.T) {
	t.Chdir(t.TempDir())
	for range 2 {
		if got, want := output(t, main), "welcome, user 7\n"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// output returns what f prints, which must fit the buffer of a pipe.
func output(t *testing.T, f func()) string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	stdout := os.Stdout
	os.Stdout = w
	f()
	os.Stdout = stdout
	w.Close()
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
