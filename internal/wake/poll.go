package wake

import "time"

// A Poll grows from a hundredth of its limit, so that what ends soon is seen soon and
// what lasts costs little.
type Poll struct{ d, limit time.Duration }

// NewPoll returns a Poll that grows up to limit.
func NewPoll(limit time.Duration) *Poll {
	p := &Poll{limit: limit}
	p.Again()
	return p
}

// Again lets p begin anew.
func (p *Poll) Again() { p.d = max(p.limit/100, time.Millisecond) }

// Next returns how long to wait before the next look.
func (p *Poll) Next() time.Duration {
	d := p.d
	p.d = min(2*p.d, p.limit)
	return d
}
