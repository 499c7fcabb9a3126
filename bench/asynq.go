package main

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/hibiken/asynq"
)

// asynqSystem is asynq. It has no call for several jobs: EnqueueMany is as many callers
// as serve it best.
//
// Its best configuration looks for jobs often where nothing tells it of them. A task
// has no retention unless it is given one.
type asynqSystem struct {
	v         Variant
	server    *redisServer
	client    *asynq.Client
	inspector *asynq.Inspector
}

const (
	manyCallers  = 16 // of an EnqueueMany
	asynqPoll    = 5 * time.Millisecond
	asynqForward = 20 * time.Millisecond
	asynqKeep    = 24 * time.Hour // pawl's default
)

func asynqQueue() *Contender {
	return &Contender{Name: "asynq", Storage: "redis", Variants: asynqVariants, Open: openAsynq}
}

func asynqVariants(w *Workload) []Variant {
	all := perSlots(w, []int{100, 10}, Variant{Config: best, Retention: history})
	if w.Works {
		all = append(all, perSlots(w, []int{100, 10}, Variant{Config: best, Retention: deleteNow})...)
		all = append(all, perSlots(w, []int{100}, Variant{Config: defaults, Retention: deleteNow})...)
	}
	return all
}

func openAsynq(_ context.Context, p *Place, v Variant) (System, error) {
	server, err := startRedis(p)
	if err != nil {
		return nil, err
	}
	s := &asynqSystem{v: v, server: server}
	s.client, s.inspector = asynq.NewClient(s.at()), asynq.NewInspector(s.at())
	return s, nil
}

func (s *asynqSystem) at() asynq.RedisClientOpt {
	return asynq.RedisClientOpt{Network: "unix", Addr: s.server.addr, PoolSize: redisPool}
}

// ServerCPU, Bytes and Logged implement [onServer].
func (s *asynqSystem) ServerCPU(ctx context.Context) (time.Duration, error) {
	return s.server.ServerCPU(ctx)
}
func (s *asynqSystem) Bytes(ctx context.Context) (int64, error) { return s.server.Bytes(ctx) }
func (s *asynqSystem) Logged(ctx context.Context) (string, int64, error) {
	return s.server.Logged(ctx)
}

// EnqueueUnique implements [UniqueSystem].
func (s *asynqSystem) EnqueueUnique(ctx context.Context, j Job) (bool, error) {
	payload, err := json.Marshal(j.Args)
	if err != nil {
		return false, err
	}
	_, err = s.client.EnqueueContext(ctx, asynq.NewTask(kind, payload), append(s.options(j), asynq.Unique(asynqKeep))...)
	if errors.Is(err, asynq.ErrDuplicateTask) {
		return false, nil
	}
	return err == nil, err
}

func (s *asynqSystem) Enqueue(ctx context.Context, j Job) error {
	payload, err := json.Marshal(j.Args)
	if err != nil {
		return err
	}
	name := kind
	if j.Foreign {
		name = foreignKind
	}
	_, err = s.client.EnqueueContext(ctx, asynq.NewTask(name, payload), s.options(j)...)
	return err
}

func (s *asynqSystem) options(j Job) []asynq.Option {
	opts := []asynq.Option{asynq.Queue(queueName)}
	if j.Queue != "" {
		opts[0] = asynq.Queue(j.Queue)
	}
	if s.v.Retention == history {
		opts = append(opts, asynq.Retention(asynqKeep))
	}
	if j.Delay > 0 {
		opts = append(opts, asynq.ProcessIn(j.Delay))
	}
	return opts
}

func (s *asynqSystem) EnqueueMany(ctx context.Context, jobs []Job) error {
	return byCallers(ctx, jobs, s.Enqueue)
}

// byCallers is EnqueueMany of a system that has no call for several jobs.
func byCallers(ctx context.Context, jobs []Job, enqueue func(context.Context, Job) error) error {
	var wg sync.WaitGroup
	errs := make([]error, manyCallers)
	for i := range errs {
		wg.Go(func() {
			for at := i; at < len(jobs) && errs[i] == nil; at += manyCallers {
				errs[i] = enqueue(ctx, jobs[at])
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (s *asynqSystem) Close() error {
	return errors.Join(s.client.Close(), s.inspector.Close(), s.server.stop())
}

// Work implements [System].
func (s *asynqSystem) Work(_ context.Context, h Handler) (Workers, error) {
	config := asynq.Config{Concurrency: s.v.Slots, Queues: map[string]int{queueName: 1}, LogLevel: asynq.FatalLevel}
	if s.v.Config == best {
		config.TaskCheckInterval, config.DelayedTaskCheckInterval = asynqPoll, asynqForward
	}
	if s.v.Retry > 0 {
		config.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return s.v.Retry }
	}
	server := asynq.NewServer(s.at(), config)
	mux := asynq.NewServeMux()
	mux.HandleFunc(kind, func(ctx context.Context, t *asynq.Task) error {
		var args Args
		if err := json.Unmarshal(t.Payload(), &args); err != nil {
			return err
		}
		return h(ctx, args.N)
	})
	if err := server.Start(mux); err != nil {
		return nil, err
	}
	return &asynqWorkers{s, server}, nil
}

type asynqWorkers struct {
	s      *asynqSystem
	server *asynq.Server
}

func (w *asynqWorkers) Settled(context.Context, int64) (bool, error) {
	info, err := w.s.inspector.GetQueueInfo(queueName)
	if err != nil {
		return false, err
	}
	return info.Pending+info.Active+info.Scheduled+info.Retry == 0, nil
}

func (w *asynqWorkers) Stop() error {
	w.server.Shutdown()
	return nil
}
