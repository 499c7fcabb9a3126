package storagetest

import (
	"time"

	"github.com/pawlq/pawl"
)

// A route brings one job from nowhere into a state.
type route struct {
	name  string
	state pawl.State
	steps func(p *pair, q pawl.Request) pawl.ID
}

func routes() []route {
	return []route{
		{"enqueued", pawl.Scheduled, byDelay},
		{"nacked", pawl.Scheduled, bySettle(pawl.Outcome{Verb: pawl.Nack, Delay: 10 * time.Second, Error: "first"})},
		{"enqueued", pawl.Ready, (*pair).add},
		{"released", pawl.Ready, bySettle(pawl.Outcome{Verb: pawl.Release})},
		{"rescued", pawl.Ready, byRescue},
		{"claimed", pawl.Running, byClaim},
		{"claimed again", pawl.Running, bySecondClaim},
		{"lease expired", pawl.Running, byExpiredLease},
		{"acked", pawl.Completed, bySettle(pawl.Outcome{Verb: pawl.Ack, Result: []byte("result")})},
		{"buried", pawl.Buried, bySettle(pawl.Outcome{Verb: pawl.Bury, Error: "bad"})},
		{"canceled waiting", pawl.Canceled, byCancel((*pair).add)},
		{"canceled running", pawl.Canceled, byCancel(byClaim)},
	}
}

func byDelay(p *pair, q pawl.Request) pawl.ID {
	q.Delay = 10 * time.Second
	return p.add(q)
}

func byClaim(p *pair, q pawl.Request) pawl.ID {
	id := p.add(q)
	p.claim(asking(queueA, 1))
	return id
}

func bySettle(o pawl.Outcome) func(*pair, pawl.Request) pawl.ID {
	return func(p *pair, q pawl.Request) pawl.ID {
		id := byClaim(p, q)
		p.pass(time.Second)
		mine := o
		mine.Ref = p.m.jobs[id].Ref
		p.settle(mine)
		return id
	}
}

func byExpiredLease(p *pair, q pawl.Request) pawl.ID {
	id := byClaim(p, q)
	p.pass(lease)
	return id
}

func byRescue(p *pair, q pawl.Request) pawl.ID {
	id := byExpiredLease(p, q)
	p.sweep()
	return id
}

func bySecondClaim(p *pair, q pawl.Request) pawl.ID {
	id := bySettle(pawl.Outcome{Verb: pawl.Release, Delay: time.Second})(p, q)
	p.pass(time.Second)
	p.claim(asking(queueA, 1))
	return id
}

func byCancel(before func(*pair, pawl.Request) pawl.ID) func(*pair, pawl.Request) pawl.ID {
	return func(p *pair, q pawl.Request) pawl.ID {
		id := before(p, q)
		p.change(pawl.Change{Verb: pawl.Cancel, Queue: queueA, IDs: []pawl.ID{id}})
		return id
	}
}
