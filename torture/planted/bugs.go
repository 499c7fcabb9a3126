// Package planted holds bugs that torture must catch. Each is a small edit of
// pawl's source, made in a copy that only the compiler sees, so that no faulty code
// stands in the product.
package planted

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/pawlq/pawl/torture/check"
)

// A Bug is an edit and what it breaks.
type Bug struct {
	Name string
	// Storage is where it shows.
	Storage string
	// File is the path under the root of pawl.
	File string
	// Edits are pairs of texts: the second one takes the place of the first, which
	// must be in the file exactly once.
	Edits [][2]string
	// Catch names invariants of which at least one must be reported.
	Catch []string
	// Linear says that it also shows in small histories of calls, as answers that no order
	// of these explains.
	Linear bool
}

// Bugs lists all of them. The last three are to be seen by what the storage itself writes down, or in
// scripts.
func Bugs() []Bug {
	return []Bug{
		{"ack-without-fence", "memory", "storage/memory/settle.go", [][2]string{
			{"if !r.current(&o.Ref) {", "if r.state != pawl.Running {"},
		}, []string{check.StaleWrite}, true},
		{"rescue-without-compare", "memory", "storage/memory/sweep.go", [][2]string{
			{"import (\n\t\"context\"\n", "import (\n\t\"context\"\n\t\"time\"\n"},
			{"\t\tif r == nil {\n\t\t\treturn\n\t\t}\n\t\tref := r.ref()",
				"\t\tif r == nil {\n\t\t\treturn\n\t\t}\n\t\tref := r.ref()\n\t\ts.mu.Unlock()\n\t\ttime.Sleep(100 * time.Millisecond)\n\t\ts.mu.Lock()"},
		}, []string{check.Overlap, check.Final, check.Executions, check.StaleWrite}, true},
		{"attempt-as-fence", "memory", "storage/memory/claim.go", [][2]string{
			{"r.run(c, s.fence, spec.Lease, now)", "r.run(c, int64(r.attempt)+1, spec.Lease, now)"},
		}, []string{check.Claims, check.Executions, check.StaleWrite}, true},
		{"claim-without-recheck", "memory", "storage/memory/claim.go", [][2]string{
			{"\t\tr := q.first(pawl.Ready)\n",
				"\t\tr := q.first(pawl.Ready)\n\t\tif n == 0 {\n\t\t\ts.mu.Unlock()\n\t\t\ttime.Sleep(time.Millisecond)\n\t\t\ts.mu.Lock()\n\t\t}\n" +
					"\t\tif r.queue == nil {\n\t\t\treturn jobs\n\t\t}\n"},
		}, []string{check.Overlap, check.Executions, check.Final}, true},
		{"ack-before-effect", "postgres", "storage/postgres/tx.go", [][2]string{
			{"if err := st.inTx(ctx, t.run); err != nil {\n\t\t\treturn err\n\t\t}",
				"if _, err := t.s.settle(ctx, outcomes); err != nil {\n\t\t\treturn err\n\t\t}"},
		}, []string{check.Effects}, false},
		{"enqueue-outside-transaction", "postgres", "storage/postgres/tx.go", [][2]string{
			{"\te := t.s.newEnqueue(ctx, reqs)\n", "\tif len(reqs) > 0 {\n\t\treturn t.s.Enqueue(ctx, reqs)\n\t}\n\te := t.s.newEnqueue(ctx, reqs)\n"},
		}, []string{check.Ghost}, false},
		{"early-start", "memory", "storage/memory/enqueue.go", [][2]string{
			{"after(now, max(q.Delay, 0))", "after(now, max(q.Delay*3/4, 0))"},
		}, []string{check.Early}, true},
		{"lease-index-left-behind", "memory", "storage/memory/settle.go", [][2]string{
			{"\tr.leaseUntil = after(now, n.Lease)\n", ""},
		}, []string{check.Overlap}, true},
		{"unknown-commit-retried", "postgres", "storage/postgres/tx.go", [][2]string{
			{"\t\treturn explain(\"commit\", err)\n", "\t\treturn s.InTx(ctx, f)\n"},
		}, []string{check.Lost, check.Effects}, false},
		{"double-wake-double-run", "memory", "worker/fetch.go", [][2]string{
			{"\truns := make([]run, len(c.Jobs))\n",
				"\tif len(c.Jobs) > 1 {\n\t\tc.Jobs = append(c.Jobs, c.Jobs[0])\n\t}\n\truns := make([]run, len(c.Jobs))\n"},
		}, []string{check.Executions}, false},
		{"delete-before-bury", "memory", "storage/memory/settle.go", [][2]string{
			{"s.finish(r, pawl.Buried, attempts, now)", "s.forget(r)"},
		}, []string{check.Lost}, true},
		{"unique-without-lock", "memory", "storage/memory/enqueue.go", [][2]string{
			{"import (\n\t\"context\"\n\t\"slices\"\n", "import (\n\t\"context\"\n\t\"slices\"\n\t\"time\"\n"},
			{"\tif err := s.makeRoom(q, now); err != nil {\n\t\treturn pawl.Receipt{}, err\n\t}\n",
				"\tif q.UniqueKey != \"\" {\n\t\ts.mu.Unlock()\n\t\ttime.Sleep(30 * time.Millisecond)\n\t\ts.mu.Lock()\n\t}\n" +
					"\tif err := s.makeRoom(q, now); err != nil {\n\t\treturn pawl.Receipt{}, err\n\t}\n"},
		}, []string{check.Unique}, true},
		{"redis-ack-without-fence", "redis", "storage/redis/lua/cycle.lua", [][2]string{
			{"if r and r[STAT] == sRUNNING and r[FENCE] == fence then", "if r and r[STAT] == sRUNNING then"},
		}, []string{check.StaleWrite}, false},
		{"redis-claim-without-recheck", "redis", "storage/redis/lua/cycle.lua", [][2]string{
			{"\t\tif #popped == 0 then break end\n",
				"\t\tif #popped == 0 then break end\n\t\tif #popped > 2 then call('ZADD', q.k[READY], popped[2], popped[1]) end\n"},
			{"if r[STAT] > sREADY then return end", "if r[STAT] > sRUNNING then return end"},
			{"elseif not fences[i] then", "else"},
		}, []string{check.Transition}, false},
		{"sqlite-settled-twice", "sqlite", "storage/sqlite/settle.go", [][2]string{
			{"case r.state == pawl.Running && r.fence == o.Ref.Fence:",
				"case r.state == pawl.Running && r.fence == o.Ref.Fence, o.Ref.Fence != 0 && r.lastFence == o.Ref.Fence && r.lastVerb != o.Verb:"},
		}, []string{check.Transition}, false},
	}
}

// Overlay writes the edited file and the description that go build -overlay reads
// into dir, and returns the path of the latter. It fails if the source has changed
// so that the edit fits no more.
func (b Bug) Overlay(root, dir string) (string, error) {
	path, err := overlay(filepath.Join(root, b.File), b.Edits, dir)
	if err != nil {
		return "", fmt.Errorf("planted: %s: %w", b.Name, err)
	}
	return path, nil
}

func overlay(path string, edits [][2]string, dir string) (string, error) {
	source, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	text := string(source)
	for _, e := range edits {
		if n := strings.Count(text, e[0]); n != 1 {
			return "", fmt.Errorf("%s holds %d times, not once: %q", path, n, e[0])
		}
		text = strings.Replace(text, e[0], e[1], 1)
	}
	edited := filepath.Join(dir, "edited.go")
	if err := os.WriteFile(edited, []byte(text), 0o600); err != nil {
		return "", err
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{path: edited}})
	if err != nil {
		return "", err
	}
	description := filepath.Join(dir, "overlay.json")
	return description, os.WriteFile(description, overlay, 0o600)
}
