package redis

import (
	"regexp"
	"slices"

	"github.com/pawlq/pawl"
)

// Keys of a queue, in the order of lua/lib.lua. All have the hash tag {queue}, so
// that they are in one slot of a cluster. A queue's name has no braces, and a
// prefix neither, so no two queues or installations share a key.
//
//	b  hash, ID: head, kind, metadata and payload; the head is the record of a job
//	   that was never claimed or changed
//	s  hash, ID: record of a job that was claimed or changed
//	x  hash, letter and ID: f failures, r result, p progress
//	w  sorted set: ready jobs by priority, then time and order of insertion
//	d  sorted set: scheduled jobs by time, then order of insertion
//	c  sorted set: running jobs by fence
//	o  sorted set: completed jobs by end
//	u  sorted set: buried jobs by end
//	n  sorted set: canceled jobs by end
//	p  sorted set: completed and canceled jobs by when they are purged
//	e  sorted set: waiting jobs by StartBefore
//	l  sorted set: claim tokens by when a lease may expire
//	q  hash, unique key: ID of who took it last
//	i  hash: counters, settings, and the claims by token
//	z  hash: claimers with room for more jobs
var keySuffixes = []string{"b", "s", "x", "w", "d", "c", "o", "u", "n", "p", "e", "l", "q", "i", "z"}

// DefaultPrefix begins all keys by default.
const DefaultPrefix = "pawl"

const maxPrefixLen = 64

var prefixPattern = regexp.MustCompile(`^[A-Za-z0-9_.:-]+$`)

// names are the names of keys and channels of an installation.
type names struct {
	prefix   string
	meta     string // hash: version of the layout
	register string // hash, queue: random token of who entered it
	channel  string // of events for all; those for one Store have its name behind
}

func newNames(prefix string) (*names, error) {
	if !prefixPattern.MatchString(prefix) || len(prefix) > maxPrefixLen {
		return nil, &pawl.InvalidError{Field: "Prefix", Limit: "1 to 64 letters, digits, '_', '-', '.' or ':'"}
	}
	return &names{prefix: prefix, meta: prefix + ":meta", register: prefix + ":queues", channel: prefix + ":events"}, nil
}

// queue appends the keys of a queue.
func (n *names) queue(keys []string, queue string) []string {
	keys = slices.Grow(keys, len(keySuffixes))
	for _, suffix := range keySuffixes {
		keys = append(keys, n.prefix+":{"+queue+"}:"+suffix)
	}
	return keys
}

func (n *names) queues(queues []string) []string {
	keys := make([]string, 0, len(queues)*len(keySuffixes))
	for _, queue := range queues {
		keys = n.queue(keys, queue)
	}
	return keys
}
