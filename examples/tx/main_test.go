package main

import (
	"bytes"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestMain lets the test binary be the process that works, too.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "-work" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestExactlyOnce(t *testing.T) {
	var out bytes.Buffer
	err := run(t.Context(), []string{"-jobs", "100", "-crash", "0.1", "-kills", "2"}, &out)
	t.Logf("\n%s", &out)
	if err != nil {
		t.Fatal(err)
	}
	rows := rowsOf(t, out.String())
	if rows["jobs"] != 100 || rows["completed"] != 100 || rows["entries"] != 100 {
		t.Errorf("got %v, want 100 jobs, completed, and entries", rows)
	}
	if rows["killed"] != 2 || rows["crashed"] == 0 {
		t.Errorf("got %v, want trouble: 2 killed and some crashed", rows)
	}
	if !strings.Contains(out.String(), "exactly once") {
		t.Error("the program does not say that all is well")
	}
}

var row = regexp.MustCompile(`(?m)^(\w+) +(\d+)  `)

func rowsOf(t *testing.T, out string) map[string]int {
	t.Helper()
	rows := map[string]int{}
	for _, m := range row.FindAllStringSubmatch(out, -1) {
		n, err := strconv.Atoi(m[2])
		if err != nil {
			t.Fatal(err)
		}
		rows[m[1]] = n
	}
	return rows
}
