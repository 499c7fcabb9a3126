package main

import (
	"os"
	"strings"
	"testing"

	"github.com/pawlq/pawl/internal/testserver"
)

// TestLinear looks at small histories on each storage.
func TestLinear(t *testing.T) {
	for storage, n := range map[string]string{"memory": "300", "sqlite": "100", "postgres": "80", "mysql": "80", "redis": "100"} {
		t.Run(storage, func(t *testing.T) {
			if testing.Short() && storage != "memory" && storage != "sqlite" {
				t.Skip("SKIPPED: servers take too long for a short test")
			}
			o, err := parse([]string{"-linear", n, "-storage", storage, "-seed", "1"}, os.Stderr)
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			err = linearize(t.Context(), o, &out)
			if err != nil && strings.Contains(err.Error(), "is not installed") && os.Getenv(testserver.RequireEnv) != "1" {
				t.Skipf("SKIPPED: %v", err)
			}
			if err != nil {
				t.Errorf("%v\n%s", err, &out)
			}
			t.Log(out.String())
		})
	}
}
