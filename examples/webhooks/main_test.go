package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/sqlite"
	"github.com/pawlq/pawl/task"
)

func TestReconciles(t *testing.T) {
	var out bytes.Buffer
	err := run(t.Context(), 60, &out)
	t.Logf("\n%s", &out)
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]int{}
	for _, m := range regexp.MustCompile(`(?m)^(\w+) +(\d+)  `).FindAllStringSubmatch(out.String(), -1) {
		rows[m[1]], _ = strconv.Atoi(m[2])
	}
	// A third each: the broken receiver's 20 are refused three times, every
	// fifth answer of 20 is lost.
	if rows["events"] != 60 || rows["accepted"] != 60 || rows["broken"] != 60 || rows["again"] != 4 || rows["limited"] == 0 {
		t.Errorf("got %v", rows)
	}
	for _, want := range []string{"A dead letter: broken answers 500 Internal Server Error, after 3 attempts.", "20 of them kicked"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in the output", want)
		}
	}
}

// TestCheck finds each sum that is off.
func TestCheck(t *testing.T) {
	right := tally{requests: 6, accepted: 2, again: 1, lost: 1, broken: 3}
	if err := check(2, 2, 6, 1, right); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*tally){
		"events accepted":  func(n *tally) { n.accepted-- },
		"runs and":         func(n *tally) { n.requests++ },
		"answers lost":     func(n *tally) { n.lost++ },
		"dead letters":     func(n *tally) { n.broken++ },
		"early requests":   func(n *tally) { n.early++ },
		"bad signatures":   func(n *tally) { n.forged++ },
		"requests and ans": func(n *tally) { n.limited++ },
	} {
		n := right
		change(&n)
		if err := check(2, 2, 6, 1, n); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)
	for s, want := range map[string]time.Duration{
		"0": 0, "120": 2 * time.Minute, "999999": 24 * time.Hour, "": -1, "-5": -1, "soon": -1,
		now.Add(time.Minute).Format(http.TimeFormat): time.Minute, now.Add(-time.Minute).Format(http.TimeFormat): 0,
	} {
		if got, ok := retryAfter(s, now); ok != (want >= 0) || ok && got != want {
			t.Errorf("%q: got %v, %v, want %v", s, got, ok, want)
		}
	}
}

// A redirection leads nowhere, and delivers nothing.
func TestRedirections(t *testing.T) {
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "x.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	s, _, err := newSender(t.Context(), store, pawl.New(store, nil))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.DB().ExecContext(t.Context(), "INSERT INTO events VALUES (1, '{}')"); err != nil {
		t.Fatal(err)
	}
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("%s followed a redirection", r.Method)
	}))
	defer elsewhere.Close()
	for _, code := range []int{http.StatusMovedPermanently, http.StatusFound, http.StatusTemporaryRedirect} {
		server := httptest.NewServer(http.RedirectHandler(elsewhere.URL, code))
		defer server.Close()
		if err := s.subscribe("x", server.URL, newSecret()); err != nil {
			t.Fatal(err)
		}
		if err := s.deliver(t.Context(), &task.Job[Delivery]{Job: &pawl.Job{}, Args: Delivery{1, "x"}}); err == nil {
			t.Errorf("%d is taken for a delivery", code)
		}
	}
}

func TestEvents(t *testing.T) {
	if err := run(t.Context(), 9, t.Output()); err == nil || !strings.Contains(err.Error(), "-events") {
		t.Errorf("got %v", err)
	}
}
