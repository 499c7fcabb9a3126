package health_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/memory"
	"github.com/pawlq/pawl/worker"
	"github.com/pawlq/pawl/worker/health"
)

// Probes of Kubernetes at /health/live and /health/ready.
func ExampleHandler() {
	work := func(context.Context, *pawl.Job) error { return nil }
	pool := worker.New(pawl.New(memory.New(nil), nil), worker.Func(work), nil)
	mux := http.NewServeMux()
	mux.Handle("/health/", http.StripPrefix("/health", health.Handler(pool)))

	for _, path := range []string{"/health/live", "/health/ready"} { // before pool.Run
		answer := httptest.NewRecorder()
		mux.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
		fmt.Print(path, " ", answer.Code, " ", answer.Body)
	}
	// Output:
	// /health/live 200 ok
	// /health/ready 503 not running
}
