package main

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestStandard signs what the standard's own libraries are tested with.
func TestStandard(t *testing.T) {
	key, err := keyOf("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		t.Fatal(err)
	}
	const id, at, body = "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", `{"test": 2432232314}`
	const want = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
	if got := sign(key, id, at, body); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	header := http.Header{headerID: {id}, headerAt: {at}, headerSignatures: {"v1,bm8= v1a,bm8= " + want}}
	if !genuine(key, header, body, time.Unix(1614265330+299, 0)) {
		t.Error("the second of two signatures is not taken")
	}
	if genuine(key, header, body, time.Unix(1614265330+301, 0)) {
		t.Error("an old request is taken")
	}
}

func TestSecrets(t *testing.T) {
	if _, err := keyOf(newSecret()); err != nil {
		t.Error(err)
	}
	short, long := strings.Repeat("AAAA", 7), strings.Repeat("AAAA", 22)
	for _, bad := range []string{"", "guess", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_", "whsec_" + short, "whsec_" + long, "whsec_!"} {
		if _, err := keyOf(bad); err == nil {
			t.Errorf("%q is taken for a secret", bad)
		}
	}
}

func TestForgeries(t *testing.T) {
	r := newReceiver("x", func(*receiver) {})
	key, err := keyOf(r.secret)
	if err != nil {
		t.Fatal(err)
	}
	now := strconv.FormatInt(time.Now().Unix(), 10)
	for name, c := range map[string]struct {
		at, signature string
		status        int
	}{
		"genuine":      {now, sign(key, "1", now, "body"), http.StatusOK},
		"other key":    {now, sign([]byte("guess"), "1", now, "body"), http.StatusUnauthorized},
		"secret":       {now, sign([]byte(r.secret), "1", now, "body"), http.StatusUnauthorized},
		"other body":   {now, sign(key, "1", now, "other"), http.StatusUnauthorized},
		"other event":  {now, sign(key, "2", now, "body"), http.StatusUnauthorized},
		"recorded":     {"1700000000", sign(key, "1", "1700000000", "body"), http.StatusUnauthorized},
		"no time":      {"", sign(key, "1", "", "body"), http.StatusUnauthorized},
		"no signature": {now, "", http.StatusUnauthorized},
	} {
		req := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("body"))
		req.Header.Set(headerID, "1")
		req.Header.Set(headerAt, c.at)
		req.Header.Set(headerSignatures, c.signature)
		w := httptest.NewRecorder()
		if r.ServeHTTP(w, req); w.Code != c.status {
			t.Errorf("%s: got status %d", name, w.Code)
		}
	}
}
