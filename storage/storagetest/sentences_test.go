package storagetest

import (
	"os"
	"regexp"
	"testing"
)

// TestSentencesNameCases keeps the list of sentences true.
func TestSentencesNameCases(t *testing.T) {
	text, err := os.ReadFile("sentences.go")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, g := range groups(traitsOf(t, referenceHarness())) {
		for _, c := range g.cases {
			known[g.name+"/"+c.name] = true
		}
	}
	named := regexp.MustCompile(`"([^"]+)"`).FindAllSubmatch(text, -1)
	for _, m := range named {
		if !known[string(m[1])] {
			t.Errorf("there is no case %q", m[1])
		}
	}
	if len(named) < 50 {
		t.Errorf("only %d cases are named", len(named))
	}
}
