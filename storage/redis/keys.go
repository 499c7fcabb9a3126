package redis

import (
	"regexp"
	"sync"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/text"
)

// Keys of a queue, or of a shard of it, in the order of lua/lib.lua. All have its hash
// tag, so that they are in one slot of a cluster. A queue's name has no braces and no
// shardMark, and a prefix has no braces, so no two queues or installations share a key.
//
//	b  hash, ID: head, kind, metadata and payload; the head is the record of a job
//	   that was never claimed or changed
//	s  hash, ID: record of a job that was changed, or claimed and not only acked; a short one
//	   of a job that was acked at its first claim. One that runs for the first time has none
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
//	i  hash: counters, settings, and the claims by token, with what is the same for the jobs of
//	   each; that of a divided queue's own
//	   tag has the number of its shards, and its other keys are empty
//	z  hash: claimers with room for more jobs
//	f  sorted set: claim tokens by their first fence
var keySuffixes = []string{"b", "s", "x", "w", "d", "c", "o", "u", "n", "p", "e", "l", "q", "i", "z", "f"}

// DefaultPrefix begins all keys by default.
const DefaultPrefix = "pawl"

const maxPrefixLen = 64

// The suffixes of single keys that Go reads.
const (
	bodySuffix     = "b"
	readySuffix    = "w"
	laterSuffix    = "d"
	doneSuffix     = "o"
	buriedSuffix   = "u"
	canceledSuffix = "n"
	idleSuffix     = "z"
)

var prefixPattern = regexp.MustCompile(`^[A-Za-z0-9_.:-]+$`)

// names are the names of keys and channels of an installation.
type names struct {
	prefix   string
	meta     string // hash: version of the layout, and the shards of each divided queue
	register string // hash, tag: random token of who entered it
	channel  string // of events for all; those for one Store have its name behind

	mu    sync.RWMutex
	known map[tag][]any // keys of queues, as arguments of commands
}

func newNames(prefix string) (*names, error) {
	if !prefixPattern.MatchString(prefix) || len(prefix) > maxPrefixLen {
		return nil, &pawl.InvalidError{Field: "Prefix", Limit: "1 to 64 letters, digits, '_', '-', '.' or ':'"}
	}
	return &names{prefix: prefix, meta: prefix + ":meta", register: prefix + ":queues", channel: prefix + ":events"}, nil
}

// checkQueue refuses what is no name of a queue, since with it keys could be those of
// another queue, or of a shard.
func checkQueue(queue string) error {
	if !text.IsName(queue, pawl.MaxNameLen) {
		return &pawl.InvalidError{Field: "Queue", Limit: "1 to 200 letters, digits, '_', '-', '.' or ':'"}
	}
	return nil
}

// maxKnown bounds the memory for keys where programs give queues ever new names.
const maxKnown = 10_000

// queue returns the keys of a queue, which are put together once.
func (n *names) queue(t tag) []any {
	n.mu.RLock()
	keys := n.known[t]
	n.mu.RUnlock()
	if keys != nil {
		return keys
	}
	for _, suffix := range keySuffixes {
		keys = append(keys, n.key(t, suffix))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.known == nil || len(n.known) >= maxKnown {
		n.known = make(map[tag][]any)
	}
	n.known[t] = keys
	return keys
}

func (n *names) key(t tag, suffix string) string { return n.prefix + ":{" + string(t) + "}:" + suffix }

func (n *names) queues(tags []tag) []any {
	if len(tags) == 1 {
		return n.queue(tags[0])
	}
	keys := make([]any, 0, len(tags)*len(keySuffixes))
	for _, t := range tags {
		keys = append(keys, n.queue(t)...)
	}
	return keys
}
