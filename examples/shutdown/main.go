// Shutdown stops as an orchestrator such as Kubernetes expects it: at SIGTERM it
// first says that it is not ready, goes on serving while the load balancers learn
// of it, lets running jobs end, and hands back those that do not.
//
//	go run ./examples/shutdown -demo -drain 1s -stop 2s
//
// The times have to fit into each other, as the defaults do:
//
//	terminationGracePeriodSeconds (30 s)       then comes SIGKILL
//	├─ -drain (5 s)          HTTP goes on, while no new requests are routed here
//	├─ -stop (20 s)          handlers go on undisturbed, from the same moment on
//	│  └─ then their contexts end; who heeds that is handed back, unspent
//	└─ what is left (5 s)    to settle those, and to close
//
// So -stop (StopTimeout) and -drain both stay below the grace period by a few seconds,
// and a preStop hook counts into it. A job that takes longer than StopTimeout is
// not lost in any case: handed back if its handler heeds its context, else
// rescued when its lease ends (30 s), as after SIGKILL. A second signal does not
// wait for any of this.
//
//	spec:
//	  terminationGracePeriodSeconds: 30
//	  containers:
//	  - readinessProbe: {httpGet: {path: /ready, port: 8080}, periodSeconds: 2}
//	    livenessProbe:  {httpGet: {path: /live, port: 8080}, failureThreshold: 5}
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/sqlite"
	"github.com/pawlq/pawl/task"
	"github.com/pawlq/pawl/worker"
	"github.com/pawlq/pawl/worker/health"
)

type config struct {
	db, addr    string
	demo        bool
	drain       time.Duration
	stopTimeout time.Duration
}

func main() {
	var c config
	c.flags(flag.CommandLine)
	flag.Parse()
	if err := run(c, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func (c *config) flags(f *flag.FlagSet) {
	f.StringVar(&c.db, "db", "", "the `file` with the jobs; empty means a temporary one")
	f.StringVar(&c.addr, "addr", ":8080", "where to listen")
	f.BoolVar(&c.demo, "demo", false, "enqueue two jobs, and send SIGTERM to myself when they run")
	f.DurationVar(&c.drain, "drain", 5*time.Second, "how long to serve HTTP after SIGTERM")
	f.DurationVar(&c.stopTimeout, "stop", 20*time.Second, "how long jobs may go on after SIGTERM")
}

func run(c config, out io.Writer) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if c.db == "" {
		folder, err := os.MkdirTemp("", "shutdown-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(folder)
		c.db = folder + "/jobs.db"
	}
	// What is opened before the signal is closed after all else.
	store, err := sqlite.Open(ctx, c.db, nil)
	if err != nil {
		return err
	}
	defer store.Close()
	q := pawl.New(store, nil)
	s := &service{q: q, out: out, running: make(chan struct{}, 2)}
	if c.demo {
		if err := s.demo(ctx, stop); err != nil {
			return err
		}
	}
	if err := s.serve(ctx, stop, c); err != nil {
		return err
	}
	return s.report()
}

type service struct {
	q       *pawl.Queue
	out     io.Writer
	running chan struct{}
}

// Sleep is work that takes a while.
type Sleep struct{ For time.Duration }

func (Sleep) Kind() string { return "sleep" }

// sleep heeds its context, as handlers should that may take longer than
// StopTimeout. Where that comes in the middle of something that can't be
// repeated, ask context.Cause(ctx) for worker.ErrStopping between the steps.
func (s *service) sleep(ctx context.Context, job *task.Job[Sleep]) error {
	fmt.Fprintf(s.out, "a job of %v begins\n", job.Args.For)
	s.running <- struct{}{}
	select {
	case <-time.After(job.Args.For):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// demo enqueues a job that ends in time and one that does not, and sends SIGTERM
// once both run.
func (s *service) demo(ctx context.Context, stop func()) error {
	for _, d := range []time.Duration{time.Second, time.Hour} {
		if _, err := s.q.Enqueue(ctx, task.New(Sleep{d})); err != nil {
			return err
		}
	}
	go func() {
		<-s.running
		<-s.running
		fmt.Fprintln(s.out, "both jobs run: SIGTERM")
		self, err := os.FindProcess(os.Getpid())
		if err == nil {
			err = self.Signal(syscall.SIGTERM)
		}
		if err != nil {
			stop() // Windows has no such signal
		}
	}()
	return nil
}

// serve serves HTTP and runs jobs until ctx ends, and then stops both, each in
// its own time. It calls unnotify when it begins to, so that another signal does
// what it does to programs that are not asked.
func (s *service) serve(ctx context.Context, unnotify func(), c config) error {
	listener, err := net.Listen("tcp", c.addr)
	if err != nil {
		return err
	}
	tasks := task.NewMux()
	task.Register(tasks, s.sleep)
	pool := worker.New(s.q, tasks, &worker.Options{StopTimeout: c.stopTimeout})
	// A pool that stops is live but not ready. So is one whose storage is not to
	// be reached: an outage of that must not restart all processes.
	server := &http.Server{Handler: health.Handler(pool), ReadHeaderTimeout: 5 * time.Second}
	served, worked := make(chan error, 1), make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	go func() { worked <- pool.Run(ctx) }() // claims nothing more once ctx ends
	fmt.Fprintf(s.out, "http://%s serves\n", listener.Addr())

	select {
	case <-ctx.Done():
	case err := <-served: // without HTTP there is nothing to be ready for
		return errors.Join(err, pool.Stop(context.WithoutCancel(ctx)), <-worked)
	case err := <-worked:
		if ctx.Err() == nil { // it can't run: its options are wrong
			return errors.Join(err, server.Close())
		}
		worked <- err // it had nothing to do, and HTTP goes on
	}
	unnotify()
	fmt.Fprintln(s.out, "not ready any more, still serving")
	time.Sleep(c.drain) // for the load balancers; nothing tells when they know
	stopping, cancel := context.WithTimeout(context.Background(), c.stopTimeout)
	defer cancel()
	err = server.Shutdown(stopping) // waits for the requests under way
	fmt.Fprintln(s.out, "HTTP ended")
	err = errors.Join(err, <-worked)
	fmt.Fprintln(s.out, "pool ended")
	return err
}

// report shows what became of the jobs.
func (s *service) report() error {
	states := []pawl.State{pawl.Scheduled, pawl.Ready, pawl.Running, pawl.Completed}
	for j, err := range s.q.Jobs(context.Background(), pawl.Filter{Queue: pawl.DefaultQueue, States: states}) {
		if err != nil {
			return err
		}
		fmt.Fprintf(s.out, "job %v, reason %s, attempt %d, releases %d\n",
			j.State, cmp.Or(string(j.Reason), "none"), j.Attempt, j.Counts.Releases)
	}
	return nil
}
