package task_test

import (
	"os/exec"
	"strings"
	"testing"
)

// What every program links must not bring a driver along.
func TestDependencies(t *testing.T) {
	const (
		root  = "github.com/pawlq/pawl"
		uuids = "github.com/google/uuid"
	)
	for pkg, also := range map[string]string{
		root:                    "",
		root + "/task":          root,
		root + "/task/tasktest": root + "/task",
		root + "/worker":        root,
	} {
		allowed := map[string]bool{root: true, uuids: true, pkg: true, also: true}
		for _, dep := range dependencies(t, pkg) {
			if !allowed[dep] && !strings.HasPrefix(dep, root+"/internal/") {
				t.Errorf("%s links %s", pkg, dep)
			}
		}
	}
}

// dependencies returns what pkg links beside the standard library. A test must
// not be linked into programs, so testing is not standard here.
func dependencies(t *testing.T, pkg string) []string {
	t.Helper()
	const format = "{{if or (not .Standard) (eq .ImportPath `testing`)}}{{.ImportPath}}{{end}}"
	out, err := exec.Command("go", "list", "-deps", "-f", format, pkg).Output()
	if err != nil {
		t.Fatalf("go list %s: %v", pkg, err)
	}
	return strings.Fields(string(out))
}
