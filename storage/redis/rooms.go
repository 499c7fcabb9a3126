package redis

import "sync"

// rooms are the places where scripts have noted that a claimer of this Store would
// take more. It only keeps calls from being made for nothing.
type rooms struct {
	mu  sync.Mutex
	all map[room]struct{}
}

type room struct {
	tag    tag
	worker string
}

func (r *rooms) enter(t tag, worker string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = make(map[room]struct{})
	}
	r.all[room{t, worker}] = struct{}{}
}

// leave reports whether the claimer had room there.
func (r *rooms) leave(t tag, worker string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, had := r.all[room{t, worker}]
	delete(r.all, room{t, worker})
	return had
}
