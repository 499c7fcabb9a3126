package task

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/text"
)

// A Handler runs one job and returns the encoded result to keep, which may be
// nil. Its error is read as [pawl.OutcomeOf] says. It is an alias, so that one
// middleware fits a Mux and a worker.
type Handler = func(ctx context.Context, job *pawl.Job) (result []byte, err error)

// A Mux holds the handlers of a process by kind, for a worker to run. Register
// handlers before the Mux is given to a worker: one added later is not seen.
// The methods are safe for concurrent use. The zero value is ready.
type Mux struct {
	mu         sync.Mutex
	kinds      map[string]pawl.Kind
	middleware []func(Handler) Handler
}

// NewMux returns a Mux without handlers.
func NewMux() *Mux { return new(Mux) }

// Handle adds a kind that is not typed; most programs want [Register] or
// [RegisterResult]. A kind with an empty name runs all kinds that have no
// handler of their own. Handle panics if the kind is there already, has no Run
// or has an invalid name or queue.
func (m *Mux) Handle(k pawl.Kind) {
	if err := checkKind(k); err != nil {
		panic(err.Error())
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, taken := m.kinds[k.Name]; taken {
		panic(fmt.Sprintf("task: kind %q is registered twice", k.Name))
	}
	if m.kinds == nil {
		m.kinds = map[string]pawl.Kind{}
	}
	m.kinds[k.Name] = k
}

func checkKind(k pawl.Kind) error {
	switch {
	case k.Run == nil:
		return fmt.Errorf("task: kind %q has a nil handler", k.Name)
	case k.Name != "" && !text.IsName(k.Name, pawl.MaxNameLen):
		return fmt.Errorf("task: kind %q is not %s", k.Name, nameLimit)
	case k.Queue != "" && !text.IsName(k.Queue, pawl.MaxNameLen):
		return fmt.Errorf("task: queue %q of kind %q is not %s", k.Queue, k.Name, nameLimit)
	}
	return nil
}

const nameLimit = "1 to 200 letters, digits, '_', '-', '.' or ':'"

// Use wraps the handlers of all kinds, also of those registered before, in
// middleware; the first is outermost. Middleware sees each run with its job,
// before the payload is decoded, and must let panics pass: the worker records
// them with their stack.
//
// Middleware that changes the payload does so in the job it was given, and must
// pass on that very job, since the worker looks there for what a transaction
// settled. Hooks after the run then see the changed payload; OnBury after a
// rescue sees it as it is stored. A [Codec] has no such seams.
func (m *Mux) Use(middleware ...func(next Handler) Handler) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.middleware = append(m.middleware, middleware...)
}

// Kinds returns the registered kinds in order of name, with the middleware
// around their handlers.
func (m *Mux) Kinds() []pawl.Kind {
	m.mu.Lock()
	kinds := slices.Collect(maps.Values(m.kinds))
	middleware := slices.Clone(m.middleware)
	m.mu.Unlock() // middleware may call m
	slices.SortFunc(kinds, func(a, b pawl.Kind) int { return cmp.Compare(a.Name, b.Name) })
	for i := range kinds {
		for _, wrap := range slices.Backward(middleware) {
			kinds[i].Run = wrap(kinds[i].Run)
		}
	}
	return kinds
}
