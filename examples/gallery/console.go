package main

import (
	"fmt"
	"io"
	"os"
)

// A console shows progress: on a terminal in one line that changes, elsewhere
// in a new line for each change.
type console struct {
	out      io.Writer
	terminal bool
	last     string
}

func newConsole(out io.Writer) *console {
	c := &console{out: out}
	if f, ok := out.(*os.File); ok {
		info, err := f.Stat()
		c.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return c
}

func (c *console) show(line string) {
	switch {
	case line == c.last:
	case c.terminal:
		fmt.Fprint(c.out, "\r\x1b[K"+line) // to the line's begin, clear it
	default:
		fmt.Fprintln(c.out, line)
	}
	c.last = line
}

// end leaves the changing line.
func (c *console) end() {
	if c.terminal && c.last != "" {
		fmt.Fprintln(c.out)
	}
	c.last = ""
}
