package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// lessUnits are those of figures that are the better the less they are.
var lessUnits = []string{"ms", "µs", "B", "allocs", "times", "CPU s/min", "leases"}

// writeJSON writes the results as an array, and beside it what they were
// measured on, a line each: the array has nothing but figures.
func writeJSON(path string, env []string, results []*Result) error {
	if results == nil {
		results = []*Result{}
	}
	data, err := json.MarshalIndent(results, "", "\t")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, append(data, '\n'), 0o644); err != nil || len(env) == 0 {
		return err
	}
	return os.WriteFile(envFile(path), []byte(strings.Join(env, "\n")+"\n"), 0o644)
}

// readJSON reads what writeJSON has written. What the figures were measured on
// may be missing.
func readJSON(path string) (results []*Result, env []string, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	if err := json.Unmarshal(data, &results); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	for _, r := range results {
		r.less = slices.Contains(lessUnits, r.Unit)
	}
	data, err = os.ReadFile(envFile(path))
	if errors.Is(err, fs.ErrNotExist) {
		return results, nil, nil
	}
	return results, strings.Split(strings.TrimSpace(string(data)), "\n"), err
}

// envFile is results.env for results.json.
func envFile(path string) string { return strings.TrimSuffix(path, filepath.Ext(path)) + ".env" }
