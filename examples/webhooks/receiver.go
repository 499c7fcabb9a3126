package main

import (
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// A receiver is a customer's end. It accepts each event once.
type receiver struct {
	name, secret string

	mu    sync.Mutex
	limit int  // each such request is told to come back later
	lose  int  // each such answer is lost, though the event was accepted
	down  bool // nothing works
	seen  map[string]bool
	until map[string]time.Time // what Retry-After said
	n     tally
}

// A tally is what receivers count.
type tally struct {
	requests, accepted, again, limited, early, broken, forged int

	lost int // of accepted
}

func (t *tally) add(u tally) {
	t.requests += u.requests
	t.accepted += u.accepted
	t.again += u.again
	t.limited += u.limited
	t.early += u.early
	t.broken += u.broken
	t.forged += u.forged
	t.lost += u.lost
}

func newReceiver(name string, set func(*receiver)) *receiver {
	r := &receiver{name: name, secret: newSecret(), seen: map[string]bool{}, until: map[string]time.Time{}}
	set(r)
	return r
}

func (r *receiver) mend() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = false
}

func (r *receiver) tally() tally {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.n
}

const retrySeconds = 1

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, 1<<20))
	if err != nil {
		http.Error(w, "can't read the body", http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n.requests++
	id := req.Header.Get(headerID)
	if time.Now().Before(r.until[id]) {
		r.n.early++
	}
	switch {
	case r.down:
		r.n.broken++
		http.Error(w, "broken", http.StatusInternalServerError)
	case !r.genuine(req, string(body)):
		r.n.forged++
		http.Error(w, "bad signature", http.StatusUnauthorized)
	case r.seen[id]:
		r.n.again++
	case r.limit > 0 && r.until[id].IsZero() && r.n.requests%r.limit == 0:
		r.n.limited++
		r.until[id] = time.Now().Add(retrySeconds * time.Second)
		w.Header().Set("Retry-After", strconv.Itoa(retrySeconds))
		http.Error(w, "too many requests", http.StatusTooManyRequests)
	default:
		r.accept(id)
	}
}

func (r *receiver) accept(id string) {
	r.seen[id] = true
	r.n.accepted++
	if r.lose > 0 && r.n.accepted%r.lose == 0 {
		r.n.lost++
		panic(http.ErrAbortHandler) // the connection breaks
	}
}

func (r *receiver) genuine(req *http.Request, body string) bool {
	key, err := keyOf(r.secret)
	return err == nil && genuine(key, req.Header, body, time.Now())
}
