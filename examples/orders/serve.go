package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/pawlq/pawl"
)

const (
	maxOrder     = 4 << 10         // bytes of an order
	lastRequests = 5 * time.Second // that requests may take after the signal to stop
)

// errDone ends the program without being an error.
var errDone = errors.New("done")

// serve runs the service and its workers until ctx ends, or the load does.
func serve(ctx context.Context, c config, out, progress io.Writer) error {
	log := slog.New(slog.NewTextHandler(progress, &slog.HandlerOptions{Level: slog.LevelWarn}))
	s, closeShop, err := openShop(ctx, c, log)
	if err != nil {
		return err
	}
	defer closeShop()
	listener, err := net.Listen("tcp", c.addr)
	if err != nil {
		return err
	}
	web := &http.Server{
		Handler:           routes(s, log),
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       time.Minute,
		WriteTimeout:      time.Minute,
		IdleTimeout:       2 * time.Minute,
	}
	url := "http://" + listener.Addr().String()
	fmt.Fprintf(out, "%s/orders takes orders\n", url)
	crew := newCrew(c, s.queue, progress)
	return together(ctx,
		crew.run,
		func(ctx context.Context) error { return serveWeb(ctx, web, listener) },
		func(ctx context.Context) error {
			if c.load == 0 {
				return nil
			}
			if err := runLoad(ctx, c, url, s, crew, out, progress); err != nil {
				return err
			}
			return errDone
		},
	)
}

func routes(s *shop, log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders", func(w http.ResponseWriter, r *http.Request) {
		code, answer := post(s, w, r)
		if code == http.StatusInternalServerError {
			log.ErrorContext(r.Context(), "order failed", "err", answer.Error)
			answer.Error = "something went wrong; the log says what"
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(answer) // an error means that the client has gone
	})
	return http.NewCrossOriginProtection().Handler(mux)
}

// placed answers an order.
type placed struct {
	Jobs  []pawl.ID `json:"jobs,omitempty"` // of the invoice and the notification
	Error string    `json:"error,omitempty"`
}

func post(s *shop, w http.ResponseWriter, r *http.Request) (code int, answer placed) {
	var o order
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxOrder)).Decode(&o); err != nil {
		return http.StatusBadRequest, placed{Error: "an order is JSON with id, total and card: " + err.Error()}
	}
	if o.ID == uuid.Nil || o.Total <= 0 {
		return http.StatusBadRequest, placed{Error: "an order has an id, a UUID, and a total above 0"}
	}
	jobs, err := s.place(r.Context(), o)
	switch {
	case errors.Is(err, errDeclined):
		return http.StatusPaymentRequired, placed{Jobs: jobs, Error: err.Error()}
	case err != nil:
		return http.StatusInternalServerError, placed{Error: err.Error()}
	case jobs == nil:
		return http.StatusOK, placed{} // it was there already
	}
	return http.StatusCreated, placed{Jobs: jobs}
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

// together runs the parts of a program side by side. The first error of one
// ends the context of all; together returns when all have returned.
func together(ctx context.Context, parts ...func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(parts))
	var all sync.WaitGroup
	for i, part := range parts {
		all.Go(func() {
			if errs[i] = part(ctx); errs[i] != nil {
				cancel()
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
