package sqlite

import "testing"

// Short delays one after another lengthen a grace once and not for ever.
func TestGraceEnds(t *testing.T) {
	var g grace
	const second = 1_000_000
	g.add(10*second, 20*second)
	for at := int64(21); at < 60; at++ {
		g.add(at*second, at*second+second/10)
		if late := at*second > 20*second+maxGrace.Microseconds(); late && g.from <= 20*second {
			t.Fatalf("at %d s a lease that ended before 20 s has a grace", at)
		}
	}
}
