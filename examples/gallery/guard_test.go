package main

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestKnownHost(t *testing.T) {
	h := knownHost("gallery.example:8080", http.NotFoundHandler())
	for host, want := range map[string]int{
		"127.0.0.1:8080": 404, "[::1]:8080": 404, "::1": 404, "localhost": 404, "Gallery.example:80": 404,
		"evil.example": 421, "evil.example:8080": 421, "localhost.evil.example": 421, "": 421,
	} {
		r := httptest.NewRequestWithContext(t.Context(), "GET", "/", nil)
		r.Host = host
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != want {
			t.Errorf("host %q: %d, want %d", host, w.Code, want)
		}
	}
}

func TestAtMost(t *testing.T) {
	begun, release := make(chan bool), make(chan bool)
	h := atMost(2, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { begun <- true; <-release }))
	ended := make(chan bool, 3)
	for range 3 {
		go func() {
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), "POST", "/", nil))
			ended <- true
		}()
	}
	<-begun
	<-begun
	release <- true // only now can the third begin
	<-begun
	release <- true
	release <- true
	for range 3 {
		<-ended
	}
}
