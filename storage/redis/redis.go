// Package redis keeps jobs in Redis 7.0 or newer, on one server, behind Sentinel,
// or on a Redis Cluster.
//
// [New] works on a client of github.com/redis/go-redis/v9 that the program has
// made. Each change is one script, which the server runs as one step.
//
// # Durability
//
// What a method has returned without error is as durable as the server's settings
// make it, and New warns, or refuses with Options.Strict, where they can lose jobs:
//
//   - appendonly yes, appendfsync always: nothing is lost by a crash of the server
//     or a loss of power.
//   - appendonly yes, appendfsync everysec: a crash of the server loses nothing, but up to
//     two seconds if its disk was so slow that the last fsync was still going on; a loss
//     of power loses about the last second.
//   - appendonly no: a crash loses what is newer than the last snapshot.
//   - maxmemory with another maxmemory-policy than noeviction: jobs are deleted
//     when the memory is full. With noeviction Enqueue fails then, and all else
//     goes on, also New, so that those who start can make room.
//
// What the server does not let its user ask counts as a risk.
//
// A failover to a replica loses what that replica had not yet received, also what
// was accepted, and can bring back what was settled, so that a job runs again. A
// fence is never less than the time of its claim, so that a claim from before the
// failover is not taken for a newer one. A server that is busy or unreachable for
// longer than cluster-node-timeout counts as failed.
//
// # Outcomes
//
// A call ends with its context, although the client library heeds no cancellation, and
// deadlines only with the client's ContextTimeoutEnabled: what it had asked of the
// server ends later, in a goroutine, by the client's ReadTimeout, or with
// ContextTimeoutEnabled at the deadline, and may still have its effect; jobs that a
// claim brings so late are released. One that waits for a connection of the client's pool gives up at once. [New] and Close heed their
// contexts, or their limit, on one server; on a cluster also the client's timeouts.
//
// The client library repeats a call by itself only if it had not been sent. What
// comes back as an error may have had its effect, and repeating it is safe, as the
// contract says.
//
// # Rights
//
// A user of the server (ACL) needs no more than
//
//	~pawl:* &pawl:events* +@hash +@sortedset +@scripting +@pubsub
//	+hello +info +config|get +exists +del +time +ping
//
// with Options.Prefix for pawl, and on a cluster what the client asks its nodes. Without
// info and config|get New can't see what may be lost. Without the channels, which a new
// user of Redis 7 does not get by itself, there are no wake-ups, and New warns of it.
// All databases of a server share its channels, so installations in two of them need
// different prefixes too.
//
// # Clusters
//
// All keys of a queue have one hash tag. An Enqueue of several queues is one step
// for each of them, and so is a Claim: if one queue is full after another has got its
// jobs, the error is not [pawl.ErrFull], and the same call repeated finds them. On one
// server an Enqueue of any number of queues is all or none. A client that reads from
// replicas can't be used.
//
// While a node is down, Extend, Sweep and Claim do what they can on the others. Extend and Sweep
// return its error, and Claim if nothing came; else it warns. Jobs that a claim may have got there
// without a reply wait for the ends of their leases.
// Sweep needs the node of the register, a key that lists the queues.
//
// # Divided queues
//
// Options.Shards divides a queue over several hash tags, so that it can outgrow a node
// of a cluster. A job is in the shard of its unique key, or else of its ID; claims
// carry the shard in Ref.Locator, and a Ref without it costs a look into each shard. A
// Store stays with a shard for four claims and then begins with the next, so that all
// have their turn. A claim that finds too little asks the other shards too, on a cluster
// all at the same time: how much they have, and then for it. These hold for each shard
// instead of the queue:
//
//   - the order of claims, by priority and by time;
//   - that requests of one call are stored in order;
//   - on a cluster, that an Enqueue is all or none;
//   - that an ID that is present changes nothing. It is found again with the same unique
//     key, or again with none, but not with another.
//
// List has one order over all shards but among jobs of the same priority and time.
// Counts are added up, on a cluster shard by shard. There MaxDepth is exact while one
// caller enqueues at a time; more may exceed it by what they have under way, and
// DropOldest drops a job of the shard that the new one goes to, or none if nothing waits
// there. MaxCompleted, MaxBuried and MaxCanceled keep up to one job a shard more;
// of sweeps at once, each divides the numbers as it has found the shards, so together
// they may keep fewer.
//
// The number of shards is recorded and stays; a queue that is in use can't be divided.
// Give all Stores the same Shards: should a failover, or somebody, delete the record, one
// without them would take the queue for whole beside those that know.
// A Store that took a queue for whole while another one divided it is refused by the
// scripts, and then goes to the shards.
//
// # Wake-ups
//
// A claim that found less than it asked for leaves the claimer's name. An Enqueue
// wakes as many of those as its jobs keep busy, by PUBLISH, and none else: fifty
// idle processes make one claim for one job, not fifty. A claimer that died is
// passed over, but on a cluster only if it was connected to the same node; there
// more are woken than needed. Close and Sweep take away the names of those that no
// longer listen. If the one that was woken has meanwhile become busy with another
// queue, the job waits until one of the others polls. Ended claims, and jobs that will
// be due before all others, are told to all.
//
// # What it costs
//
// A call on a queue of a million jobs costs what it costs on one of a hundred,
// but for a logarithm. A step of more than some thousand jobs holds the server up
// for as long as it takes, some 20 µs each: an Enqueue of 10,000, a Claim when
// 10,000 jobs have become due. A waiting job takes about 290 bytes besides its
// payload, a completed one that is kept 600.
//
// List reads all of each job, also without payloads, about 1 MiB a step.
//
// Sweep also looks at some records of each queue, and puts right what evictions, a
// foreign hand or a restored backup have left: records in no index, entries
// without a record, running jobs without a lease. A job whose payload is gone goes.
// One that can't be read holds up no others: the Claim that would get it, or else one of the
// Sweeps that follow, buries it and warns, or if it has ended it goes with its retention.
// Whoever runs it has lost it.
//
// # What it was run on
//
// It passes the whole contract and the tests of pools on Redis 7.0, on one
// server and on a cluster of three masters and their replicas, with whole and with
// divided queues. Pools on it have been through crashes, failovers of a cluster and of
// Sentinel, moved slots, a cluster that is down, replicas in the place of masters, long
// loads, lost replies, a full memory, and SCRIPT FLUSH all the time. Valkey has not been
// run.
package redis

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pawlq/pawl"
)

// Options are the settings of a Store. The zero value of each is its default.
type Options struct {
	// Prefix begins all keys, so that several installations can share a database:
	// 1 to 64 letters, digits, '_', '-', '.' or ':'. Empty means DefaultPrefix.
	Prefix string

	// Strict makes New fail with ErrServer where it otherwise warns: if settings
	// of the server can lose jobs that were accepted.
	Strict bool

	// Shards divides queues, by name, each over 2 to MaxShards parts that lie on any
	// node of a cluster, so that a queue can have more than one node's work. It is for
	// queues that hold nothing yet and lasts: New fails with ErrShards if a queue is in
	// use or has another number of shards, and other Stores learn of it by themselves.
	// The nodes have about equal parts if there are several times as many shards.
	Shards map[string]int

	// BatchJobs and BatchBytes bound the calls of Enqueue with one request each that
	// callers make at the same time and that share a call of the server, by jobs and, about,
	// by payload bytes. 0 means 500 jobs and 1 MiB, BatchJobs 1 that none do.
	BatchJobs  int
	BatchBytes int

	// Clock replaces the server's clock if it is not nil. It is for tests.
	Clock func() time.Time

	// Logger gets warnings; nil means slog.Default().
	Logger *slog.Logger
}

// A Store is a [pawl.Storage] on a Redis server or cluster. It also implements
// [pawl.Watcher] and [pawl.Cycler]. Make one with [New] and end it with Close.
type Store struct {
	client  redis.UniversalClient
	names   *names
	scripts *scripts
	clock   func() time.Time
	log     *slog.Logger
	cluster bool   // each queue needs a call of its own
	group   *group // nil: none
	shards  shards
	touched touched
	rooms   rooms
	watch   watchers
	tokens  tokens
	outages outages

	sweepNext atomic.Pointer[tag] // where the next sweep begins

	closing sync.Once
}

var (
	_ pawl.Storage = (*Store)(nil)
	_ pawl.Watcher = (*Store)(nil)
	_ pawl.Cycler  = (*Store)(nil)
)

// New returns a Store on the server of client. Close leaves client open. A nil o
// means the defaults.
func New(ctx context.Context, client redis.UniversalClient, o *Options) (*Store, error) {
	f := Options{}
	if o != nil {
		f = *o
	}
	if f.Prefix == "" {
		f.Prefix = DefaultPrefix
	}
	if f.Logger == nil {
		f.Logger = slog.Default()
	}
	n, err := newNames(f.Prefix)
	if err != nil {
		return nil, err
	}
	s := &Store{client: client, names: n, scripts: compiled(), clock: f.Clock, log: f.Logger}
	if f.BatchJobs != 1 {
		s.group = newGroup(s, f.BatchJobs, f.BatchBytes)
	}
	s.watch.init(s)
	if err := s.check(ctx, f.Strict); err != nil {
		return nil, explain("open", err)
	}
	if err := s.divide(ctx, f.Shards); err != nil {
		return nil, explain("open", err)
	}
	return s, nil
}

// now is the test clock in microseconds, or 0, which makes scripts take the
// server's time.
func (s *Store) now() int64 {
	if s.clock == nil {
		return 0
	}
	return s.clock().UnixMicro()
}

// time is the test clock, or that of this process.
func (s *Store) time() time.Time {
	if s.clock == nil {
		return time.Now()
	}
	return s.clock()
}

// Close ends the Store: watchers return, and later calls fail with
// [pawl.ErrClosed]. The client stays open. If claims of this Store were watched, one last
// call tells the server not to wake them any more.
func (s *Store) Close() error {
	s.closing.Do(func() {
		close(s.watch.gone)
		s.leaveRooms()
	})
	return nil
}

// call runs a call of the contract and explains its error. If it finds that a queue
// has been divided, it is made again; calls that this could harm see to it by themselves.
func call[T any](ctx context.Context, s *Store, what string, f func() (T, error)) (T, error) {
	var none T
	select {
	case <-s.watch.gone:
		return none, pawl.ErrClosed
	default:
	}
	if err := ctx.Err(); err != nil {
		return none, err
	}
	result, err := f()
	for range pawl.MaxQueues {
		if !s.divided(ctx, err) {
			break
		}
		result, err = f()
	}
	if err != nil {
		return none, explain(what, err)
	}
	return result, nil
}

// again tells f whether it was called before.
func again[T any](f func(repeat bool) (T, error)) func() (T, error) {
	repeat := false
	return func() (T, error) {
		was := repeat
		repeat = true
		return f(was)
	}
}

// repeated marks outcomes as those of a Settle that may have had its effect.
func repeated(outcomes []pawl.Outcome) []pawl.Outcome {
	outcomes = slices.Clone(outcomes)
	for i := range outcomes {
		outcomes[i].Repeat = true
	}
	return outcomes
}

// Enqueue implements [pawl.Writer]. On a cluster it is atomic for each queue, or
// shard of it.
func (s *Store) Enqueue(ctx context.Context, reqs []*pawl.Request) ([]pawl.Receipt, error) {
	return call(ctx, s, "enqueue", func() ([]pawl.Receipt, error) { return s.enqueue(ctx, reqs) })
}

// Settle implements [pawl.Writer].
func (s *Store) Settle(ctx context.Context, outcomes []pawl.Outcome) ([]pawl.Ref, error) {
	return call(ctx, s, "settle", again(func(repeat bool) ([]pawl.Ref, error) {
		if repeat && s.cluster { // on one server all of the first call was refused
			outcomes = repeated(outcomes)
		}
		return s.settle(ctx, outcomes)
	}))
}

// Claim implements [pawl.Storage].
func (s *Store) Claim(ctx context.Context, spec pawl.ClaimSpec) (pawl.Claimed, error) {
	_, c, err := s.Cycle(ctx, nil, spec)
	return c, err
}

// Cycle implements [pawl.Cycler].
func (s *Store) Cycle(ctx context.Context, outcomes []pawl.Outcome, spec pawl.ClaimSpec) ([]pawl.Ref, pawl.Claimed, error) {
	if err := s.tokens.begin(ctx, spec.Token); err != nil {
		return nil, pawl.Claimed{}, err
	}
	c := &cycle{}
	_, err := call(ctx, s, "claim", again(func(repeat bool) (_ struct{}, err error) {
		if repeat {
			outcomes, spec.Repeat = repeated(outcomes), true
		}
		c, err = s.cycle(ctx, outcomes, spec)
		return struct{}{}, err
	}))
	s.end(spec.Token, c.got.Jobs, nil)
	if err != nil {
		return nil, c.got, err // jobs come also if others could not be settled
	}
	return c.lostRefs(), c.got, nil
}

// Extend implements [pawl.Storage].
func (s *Store) Extend(ctx context.Context, renewals []pawl.Renewal) ([]pawl.Ref, error) {
	return call(ctx, s, "extend", func() ([]pawl.Ref, error) { return s.extend(ctx, renewals) })
}

// Sweep implements [pawl.Storage].
func (s *Store) Sweep(ctx context.Context, spec pawl.SweepSpec) (pawl.Swept, error) {
	var swept pawl.Swept // also with an error
	_, err := call(ctx, s, "sweep", func() (_ struct{}, err error) {
		swept, err = s.sweep(ctx, spec)
		return struct{}{}, err
	})
	return swept, err
}

// Change implements [pawl.Admin].
func (s *Store) Change(ctx context.Context, c pawl.Change) ([]pawl.Changed, error) {
	return call(ctx, s, "change", func() ([]pawl.Changed, error) { return s.change(ctx, c) })
}

// Configure implements [pawl.Admin].
func (s *Store) Configure(ctx context.Context, queue string, set pawl.QueueSettings) error {
	_, err := call(ctx, s, "configure", func() (struct{}, error) { return struct{}{}, s.configure(ctx, queue, set) })
	return err
}

// Get implements [pawl.Admin]. Without a queue it costs a call for each queue.
func (s *Store) Get(ctx context.Context, queue string, ids ...pawl.ID) ([]*pawl.Job, error) {
	return call(ctx, s, "get", func() ([]*pawl.Job, error) { return s.get(ctx, queue, ids) })
}

// List implements [pawl.Admin].
func (s *Store) List(ctx context.Context, spec pawl.ListSpec) (pawl.Page, error) {
	return call(ctx, s, "list", func() (pawl.Page, error) { return s.list(ctx, spec) })
}

// Count implements [pawl.Admin].
func (s *Store) Count(ctx context.Context, queues ...string) ([]pawl.QueueStats, error) {
	return call(ctx, s, "count", func() ([]pawl.QueueStats, error) { return s.count(ctx, queues) })
}

// Watch implements [pawl.Watcher]. It first sends an EventReady without a queue,
// for what happened before it listened.
func (s *Store) Watch(ctx context.Context, f func(pawl.Event)) error { return s.watchEvents(ctx, f) }

// Prefix returns what all keys begin with.
func (s *Store) Prefix() string { return s.names.prefix }
