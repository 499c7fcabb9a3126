package main

import (
	"bytes"
	"context"
	"fmt"
	"html/template"
	"net/http"
	"time"

	"github.com/pawlq/pawl"
)

// How much the page shows.
const (
	maxShown = 200 // pictures, the newest
	maxDead  = 50  // dead letters, the oldest
)

var pageTemplate = template.Must(template.New("page.html").
	Funcs(template.FuncMap{"size": size, "took": took, "lastError": lastError}).
	ParseFS(web, "web/page.html"))

// page is the contact sheet: what the template shows.
type page struct {
	Stats    pawl.QueueStats
	Pictures []status
	Dead     []*pawl.Job
}

// Pending tells whether the page will change by itself.
func (p *page) Pending() bool { return pending(p.Stats) > 0 }

// MoreDead counts the dead letters that are not shown.
func (p *page) MoreDead() int64 { return max(0, p.Stats.Buried-int64(len(p.Dead))) }

func pending(s pawl.QueueStats) int64 { return s.Ready + s.Scheduled + s.Running }

func (s *server) page(w http.ResponseWriter, r *http.Request) error {
	p, err := s.readPage(r.Context())
	if err != nil {
		return err
	}
	var b bytes.Buffer // so that a failing template sends no half page
	if err := pageTemplate.Execute(&b, p); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = b.WriteTo(w) // an error means that the client has gone
	return nil
}

func (s *server) readPage(ctx context.Context) (*page, error) {
	stats, err := s.queue.Stats(ctx, thumbnails)
	if err != nil {
		return nil, err
	}
	latest, err := s.pictures.latest(ctx, maxShown)
	shown, err := s.pictures.withJobs(ctx, latest, err)
	if err != nil {
		return nil, err
	}
	buried := pawl.Filter{Queue: thumbnails, States: []pawl.State{pawl.Buried}}
	dead, err := s.queue.List(ctx, pawl.ListSpec{Filter: buried, Limit: maxDead})
	if err != nil {
		return nil, err
	}
	return &page{Stats: stats[0], Pictures: shown, Dead: dead.Jobs}, nil
}

// size formats a number of bytes.
func size(n int64) string {
	switch {
	case n < 1000:
		return fmt.Sprintf("%d B", n)
	case n < 1_000_000:
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	default:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	}
}

// took formats how long a picture waited for its thumbnail.
func took(s status) string { return short(s.Made.Sub(s.Uploaded)) }

// short rounds d to about three digits.
func short(d time.Duration) string {
	unit := time.Microsecond
	for d >= 1000*unit {
		unit *= 10
	}
	return d.Round(unit).String()
}
