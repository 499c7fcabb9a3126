package main

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// knownHost refuses requests for a foreign name, by which a page from elsewhere
// can pass for the gallery's own (DNS rebinding). Addresses, localhost and the
// name in addr are known.
func knownHost(addr string, next http.Handler) http.Handler {
	own := hostOf(addr)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := hostOf(r.Host)
		_, err := netip.ParseAddr(host)
		if err != nil && host != "localhost" && (own == "" || host != own) {
			http.Error(w, "unknown host", http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// hostOf returns the host of an address, which may lack a port.
func hostOf(addr string) string {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = strings.Trim(addr, "[]")
	}
	return strings.ToLower(host)
}

// atMost lets n requests through at a time; others wait as long as their
// clients do.
func atMost(n int, next http.Handler) http.Handler {
	room := make(chan struct{}, n)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case room <- struct{}{}:
			defer func() { <-room }()
			next.ServeHTTP(w, r)
		case <-r.Context().Done():
		}
	})
}
