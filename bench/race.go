//go:build race

package main

// raceDetector is whether this program looks for data races, of which neoq has some.
const raceDetector = true
