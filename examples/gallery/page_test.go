package main

import (
	"testing"
	"time"
)

func TestShort(t *testing.T) {
	for d, want := range map[time.Duration]string{
		1234 * time.Nanosecond:        "1µs",
		999 * time.Microsecond:        "999µs",
		12_345 * time.Microsecond:     "12.3ms",
		999_600 * time.Microsecond:    "1s",
		13_249 * time.Millisecond:     "13.2s",
		125 * time.Second:             "2m5s",
		26*time.Hour + 20*time.Minute: "26h20m0s",
	} {
		if got := short(d); got != want {
			t.Errorf("short(%v) = %s, want %s", d, got, want)
		}
	}
}

func TestSize(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 999: "999 B", 1000: "1.0 kB", 16 << 20: "16.8 MB"} {
		if got := size(n); got != want {
			t.Errorf("size(%d) = %s, want %s", n, got, want)
		}
	}
}
