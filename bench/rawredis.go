package main

import (
	"context"
	"encoding/json"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	client "github.com/redis/go-redis/v9"
)

// rawRedisSystem is the limit on Redis: scripts on a layout of pawl's shape, a sorted
// set of ready jobs and a hash of bodies, that take a batch each. A claim has a lease
// by its fence, which a settle must name. There are no retries, no rescues, no types of
// jobs, no wake-ups, and no dispatch.
type rawRedisSystem struct {
	*redisServer
	v Variant
	c *client.Client
}

// Keys: seq, bodies, ready, leases, done.
var (
	rawRedisEnqueue = client.NewScript(`
local seq, ready, bodies = redis.call('INCRBY', KEYS[1], #ARGV / 2), {}, {}
for i = 1, #ARGV, 2 do
	ready[i], ready[i + 1] = seq + i, ARGV[i]
	bodies[i], bodies[i + 1] = ARGV[i], ARGV[i + 1]
end
redis.call('HSET', KEYS[2], unpack(bodies))
redis.call('ZADD', KEYS[3], unpack(ready))`)

	// The arguments are the time, how many to claim, whether done jobs are kept, the
	// fence of a claim, and its jobs.
	rawRedisCycle = client.NewScript(`
local now, settled, gone = tonumber(ARGV[1]), {}, {}
for i = 5, #ARGV do
	if redis.call('ZREM', KEYS[4], ARGV[i] .. ARGV[4]) == 1 then
		if ARGV[3] == '1' then
			settled[#settled + 1], settled[#settled + 2] = now, ARGV[i]
		else
			gone[#gone + 1] = ARGV[i]
		end
	end
end
if #settled > 0 then redis.call('ZADD', KEYS[5], unpack(settled)) end
if #gone > 0 then redis.call('HDEL', KEYS[2], unpack(gone)) end
local popped = redis.call('ZPOPMIN', KEYS[3], ARGV[2])
if #popped == 0 then return {'', {}, {}} end
local fence, ids, leases = tostring(redis.call('INCR', KEYS[1])), {}, {}
for i = 1, #popped, 2 do
	ids[#ids + 1] = popped[i]
	leases[i], leases[i + 1] = now + 60000000, popped[i] .. fence
end
redis.call('ZADD', KEYS[4], unpack(leases))
return {fence, ids, redis.call('HMGET', KEYS[2], unpack(ids))}`)
)

var rawRedisKeys = []string{"seq", "bodies", "ready", "leases", "done"}

func rawRedis() *Contender {
	return &Contender{Name: "raw", Storage: "redis", Variants: rawVariants,
		Open: func(_ context.Context, p *Place, v Variant) (System, error) {
			server, err := startRedis(p)
			if err != nil {
				return nil, err
			}
			return &rawRedisSystem{server, v, server.connect()}, nil
		}}
}

// Enqueue implements [System].
func (s *rawRedisSystem) Enqueue(ctx context.Context, j Job) error {
	return s.EnqueueMany(ctx, []Job{j})
}

// EnqueueMany implements [System].
func (s *rawRedisSystem) EnqueueMany(ctx context.Context, jobs []Job) error {
	const most = 1000 // unpack returns no more than 8,000 values
	for ; len(jobs) > 0; jobs = jobs[min(most, len(jobs)):] {
		var args []any
		for _, j := range jobs[:min(most, len(jobs))] {
			payload, err := json.Marshal(j.Args)
			if err != nil {
				return err
			}
			id, err := uuid.NewV7()
			if err != nil {
				return err
			}
			args = append(args, id[:], payload)
		}
		if err := rawRedisEnqueue.Run(ctx, s.c, rawRedisKeys, args...).Err(); err != nil && err != client.Nil {
			return err
		}
	}
	return nil
}

// Close implements [System].
func (s *rawRedisSystem) Close() error {
	if err := s.c.Close(); err != nil {
		return err
	}
	return s.stop()
}

// Work implements [System].
func (s *rawRedisSystem) Work(ctx context.Context, h Handler) (Workers, error) {
	ctx, cancel := context.WithCancel(ctx)
	w := &rawRedisWorkers{s: s, cancel: cancel}
	for range engineClaimers {
		w.wg.Go(func() {
			if err := w.run(ctx, h); err != nil && ctx.Err() == nil {
				w.failed.CompareAndSwap(nil, &err)
			}
		})
	}
	return w, nil
}

type rawRedisWorkers struct {
	s       *rawRedisSystem
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	settled atomic.Int64
	failed  atomic.Pointer[error]
}

func (w *rawRedisWorkers) run(ctx context.Context, h Handler) error {
	var fence any = ""
	var ids []any
	keep := 0
	if w.s.v.Retention == history {
		keep = 1
	}
	for ctx.Err() == nil {
		args := append([]any{time.Now().UnixMicro(), w.s.v.Batch, keep, fence}, ids...)
		reply, err := rawRedisCycle.Run(ctx, w.s.c, rawRedisKeys, args...).Slice()
		if err != nil {
			return err
		}
		w.settled.Add(int64(len(ids)))
		fence, ids = reply[0], reply[1].([]any)
		for range ids {
			if err := h(ctx, 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// Settled implements [Workers].
func (w *rawRedisWorkers) Settled(context.Context, int64) (bool, error) {
	if err := w.failed.Load(); err != nil {
		return false, *err
	}
	n, err := w.s.c.ZCard(context.Background(), "leases").Result()
	return n == 0, err
}

// Stop implements [Workers].
func (w *rawRedisWorkers) Stop() error {
	w.cancel()
	w.wg.Wait()
	if err := w.failed.Load(); err != nil {
		return *err
	}
	return nil
}
