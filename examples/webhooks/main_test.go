package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
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

func TestForgeries(t *testing.T) {
	r := newReceiver("x", func(*receiver) {})
	now := strconv.FormatInt(time.Now().Unix(), 10)
	for name, c := range map[string]struct {
		at, signature string
		status        int
	}{
		"genuine":      {now, sign(r.secret, "1", now, "body"), http.StatusOK},
		"other secret": {now, sign("guess", "1", now, "body"), http.StatusUnauthorized},
		"other body":   {now, sign(r.secret, "1", now, "other"), http.StatusUnauthorized},
		"other event":  {now, sign(r.secret, "2", now, "body"), http.StatusUnauthorized},
		"recorded":     {"1700000000", sign(r.secret, "1", "1700000000", "body"), http.StatusUnauthorized},
		"no time":      {"", sign(r.secret, "1", "", "body"), http.StatusUnauthorized},
	} {
		req := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("body"))
		req.Header.Set("Webhook-Id", "1")
		req.Header.Set("Webhook-Timestamp", c.at)
		req.Header.Set("Webhook-Signature", c.signature)
		w := httptest.NewRecorder()
		if r.ServeHTTP(w, req); w.Code != c.status {
			t.Errorf("%s: got status %d", name, w.Code)
		}
	}
}

func TestEvents(t *testing.T) {
	if err := run(t.Context(), 9, t.Output()); err == nil || !strings.Contains(err.Error(), "-events") {
		t.Errorf("got %v", err)
	}
}
