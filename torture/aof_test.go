package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/pawlq/pawl/torture/check"
)

// TestAOF reads the lives of jobs out of what Redis writes.
func TestAOF(t *testing.T) {
	one := uuid.MustParse("01890a5d-ac96-774b-bcce-b302099a8057") // without bytes that the scripts below use
	id := string(one[:])
	born := "HSET b:" + id + " x;ZADD w:2 " + "0123456789abc" + id
	for _, c := range []struct {
		name, scripts string // by |
		changes       int64
		illegal       int
		twice         int
		orphans       int
	}{
		{"completed", born + "|ZADD c:1 " + id + "|ZADD o:5 " + id, 3, 0, 0, 0},
		{"in one script", born + ";ZADD c:1 " + id, 1, 1, 0, 0},
		{"settled and claimed in one", born + "|ZADD c:1 " + id + "|ZADD w:2 0123456789abc" + id + ";ZADD c:2 " + id, 3, 0, 0, 0},
		{"claimed while it ran", born + "|ZADD c:1 " + id + "|ZADD c:2 " + id, 3, 1, 0, 0},
		{"told again that it runs", born + "|ZADD c:1 " + id + "|ZADD c:1 " + id, 2, 0, 0, 0},
		{"claimed after its end", born + "|ZADD c:1 " + id + "|ZADD o:5 " + id + "|ZADD c:2 " + id, 4, 1, 1, 0},
		{"an older fence", born + "|ZADD c:2 " + id + "|ZADD w:2 " + id + "|ZADD c:1 " + id, 4, 1, 0, 0},
		{"removed", born + "|ZADD c:1 " + id + "|HDEL b:" + id, 3, 0, 0, 0},
		{"indexed after its removal", born + "|HDEL b:" + id + "|ZADD o:5 " + id, 3, 2, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newAOFReader(strings.NewReader(aofText(c.scripts)))
			if err := a.read(); err != nil {
				t.Fatal(err)
			}
			var in check.Input
			a.fill(&in)
			got := []int{int(in.Changes), len(in.Illegal), len(in.Twice), len(in.Orphans)}
			if d := cmp.Diff([]int{int(c.changes), c.illegal, c.twice, c.orphans}, got); d != "" {
				t.Errorf("changes, illegal ones, jobs completed twice, orphans (-want +got):\n%s%v", d, in.Illegal)
			}
		})
	}
}

// aofText writes scripts as Redis does.
func aofText(scripts string) string {
	var text strings.Builder
	say := func(words ...string) {
		fmt.Fprintf(&text, "*%d\r\n", len(words))
		for _, w := range words {
			fmt.Fprintf(&text, "$%d\r\n%s\r\n", len(w), w)
		}
	}
	for script := range strings.SplitSeq(scripts, "|") {
		say("MULTI")
		for command := range strings.SplitSeq(script, ";") {
			name, rest, _ := strings.Cut(command, " ")
			key, rest, _ := strings.Cut(rest, ":")
			first, second, ok := strings.Cut(rest, " ")
			words := []string{name, "pawl:{main}:" + key, first}
			if ok {
				words = append(words, second)
			}
			say(words...)
		}
		say("EXEC")
	}
	return text.String()
}
