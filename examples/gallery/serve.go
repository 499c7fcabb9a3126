package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/sqlite"
	"github.com/pawlq/pawl/task"
	"github.com/pawlq/pawl/worker"
)

const (
	// lease and sweepEvery are short, so that what a killed process was at is
	// soon taken up again. Workers that live extend their leases in time.
	lease      = 5 * time.Second
	sweepEvery = time.Second

	// lastRequests is how long requests may go on after the signal to stop.
	lastRequests = 5 * time.Second
)

// serve runs the service until ctx ends, or the demo does.
func serve(ctx context.Context, c config, out io.Writer) (err error) {
	log := newLog(c)
	store, err := sqlite.Open(ctx, c.db, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()

	queue := pawl.New(store, &pawl.Options{Lease: lease, Logger: log})
	pics, err := openPictures(ctx, store, queue)
	if err != nil {
		return err
	}
	tasks := task.NewMux()
	task.Register(tasks, handler(pics, c.trouble), &task.Options[makeThumb]{
		Timeout: time.Minute,
		Backoff: pawl.Exponential{Base: 100 * time.Millisecond, Max: 5 * time.Second},
	})
	pool := worker.New(queue, tasks, &worker.Options{Concurrency: c.workers, SweepEvery: sweepEvery})

	listener, err := net.Listen("tcp", c.addr)
	if err != nil {
		return err
	}
	web := newWebServer(knownHost(c.addr, (&server{pics, queue, log}).routes()), log)
	url := "http://" + listener.Addr().String()
	fmt.Fprintf(out, "%s/ shows %s; this is process %d\n", url, c.db, os.Getpid())

	return together(ctx,
		pool.Run,
		func(ctx context.Context) error { return serveWeb(ctx, web, listener) },
		func(ctx context.Context) error { return clientSide(ctx, c, url, out) },
	)
}

// newLog keeps the log of a demo to what should not be there: its broken
// pictures and failures are meant.
func newLog(c config) *slog.Logger {
	level := slog.LevelInfo
	if c.demo {
		level = slog.LevelError
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
}

func newWebServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       time.Minute, // an upload of 16 MB over a slow line
		WriteTimeout:      time.Minute,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
	}
}

// serveWeb serves until ctx ends and then lets running requests end.
func serveWeb(ctx context.Context, web *http.Server, l net.Listener) error {
	stopped := make(chan error, 1)
	go func() {
		<-ctx.Done()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastRequests)
		defer cancel()
		stopped <- web.Shutdown(ctx)
	}()
	if err := web.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err // which ends ctx, and so the goroutine
	}
	return <-stopped
}

// errDone ends the program without being an error.
var errDone = errors.New("done")

// clientSide runs the demo, if asked for. With -exit its end is the program's.
func clientSide(ctx context.Context, c config, url string, out io.Writer) error {
	if !c.demo {
		return nil
	}
	err := runDemo(ctx, url, c.dir, newConsole(out))
	switch {
	case err != nil && ctx.Err() != nil:
		return errors.New("stopped before the demo was over")
	case c.exit && err == nil:
		return errDone
	case c.exit:
		return err
	case err != nil:
		fmt.Fprintln(out, "NOT RIGHT:", err)
	}
	fmt.Fprintf(out, "\nThe page stays up at %s/ until you press Ctrl-C.\n", url)
	return nil
}

// together runs the parts of a program side by side. The first error of one
// ends the context of all; together returns when all have returned.
func together(ctx context.Context, parts ...func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	errs := make([]error, len(parts))
	var all sync.WaitGroup
	for i, part := range parts {
		all.Go(func() {
			errs[i] = part(ctx)
			if errs[i] != nil {
				cancel(errs[i])
			}
		})
	}
	all.Wait()
	for i, err := range errs {
		if errors.Is(err, errDone) {
			errs[i] = nil
		}
	}
	return errors.Join(errs...)
}
