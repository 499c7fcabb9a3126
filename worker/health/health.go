// Package health tells over HTTP how pools are, for probes such as those of
// Kubernetes. It is apart from package worker so that programs without HTTP do
// not link it.
package health

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/pawlq/pawl/worker"
)

// Handler serves exactly GET /live and GET /ready, so a prefix has to be stripped
// by whoever adds one: 200 if all pools are, else 503 with their reasons, one a
// line; see [worker.Health]. Both follow progress: a pool
// whose slots are busy with long jobs is live and ready. A pool that stops, or
// whose storage fails, is live but not ready.
//
// A probe of /live that fails some times in a row is a reason to start the
// process anew, one of /ready is a reason not to send it requests:
//
//	mux.Handle("/health/", http.StripPrefix("/health", health.Handler(pool)))
func Handler(pools ...*worker.Pool) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /live", probe(pools, func(h worker.Health) bool { return h.Live }))
	mux.Handle("GET /ready", probe(pools, func(h worker.Health) bool { return h.Ready }))
	return mux
}

func probe(pools []*worker.Pool, well func(worker.Health) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		var reasons []string
		for _, p := range pools {
			if h := p.Health(); !well(h) {
				reasons = append(reasons, h.Reason)
			}
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		if len(reasons) > 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintln(w, strings.Join(reasons, "\n"))
			return
		}
		fmt.Fprintln(w, "ok")
	})
}
