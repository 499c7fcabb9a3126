package main

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/sqlite"
	"github.com/pawlq/pawl/task"
)

// maxAttempts is few, for dead letters to come soon. In earnest the default of
// 25 attempts reaches over most of a day.
const maxAttempts = 3

// Delivery brings one event to one customer.
type Delivery struct {
	Event    int64
	Customer string
}

func (Delivery) Kind() string { return "webhook" }

// A customer has an endpoint, and a key that both sides know. Where customers
// choose the URL, see to it that it does not lead into your own network.
type customer struct {
	url string
	key []byte
}

type sender struct {
	store     *sqlite.Store
	q         *pawl.Queue
	customers map[string]customer
	client    *http.Client
}

func newSender(ctx context.Context, store *sqlite.Store, q *pawl.Queue) (*sender, []*receiver, error) {
	_, err := store.DB().ExecContext(ctx, "CREATE TABLE events (id INTEGER PRIMARY KEY, body TEXT NOT NULL)")
	s := &sender{store: store, q: q, customers: map[string]customer{}, client: &http.Client{
		Timeout: 5 * time.Second,
		// What is signed for one address goes to no other, and never without its body.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	return s, []*receiver{
		newReceiver("limited", func(r *receiver) { r.limit = 4 }),
		newReceiver("forgetful", func(r *receiver) { r.lose = 5 }),
		newReceiver("broken", func(r *receiver) { r.down = true }),
	}, err
}

func (s *sender) subscribe(name, url, secret string) error {
	key, err := keyOf(secret)
	s.customers[name] = customer{url, key}
	return err
}

// publish stores an event and the job that delivers it, both or neither.
func (s *sender) publish(ctx context.Context, to, body string) (job pawl.ID, err error) {
	err = s.store.InTx(ctx, func(tx *sql.Tx, w pawl.Writer) error {
		res, err := tx.ExecContext(ctx, "INSERT INTO events (body) VALUES (?)", body)
		if err != nil {
			return err
		}
		id, err := res.LastInsertId()
		if err != nil {
			return err
		}
		r := task.New(Delivery{Event: id, Customer: to})
		r.MaxAttempts = maxAttempts
		receipt, err := s.q.WithTx(w).Enqueue(ctx, r)
		job = receipt.ID
		return err
	})
	return job, err
}

func (s *sender) count(ctx context.Context) (n int, err error) {
	err = s.store.DB().QueryRowContext(ctx, "SELECT count(*) FROM events").Scan(&n)
	return n, err
}

// deliver posts an event. The job's ID is the event's at the receiver too: it is
// the same in each attempt, so that the receiver knows what it has already.
func (s *sender) deliver(ctx context.Context, job *task.Job[Delivery]) error {
	var body string
	row := s.store.DB().QueryRowContext(ctx, "SELECT body FROM events WHERE id = ?", job.Args.Event)
	if err := row.Scan(&body); err != nil {
		return err
	}
	to := s.customers[job.Args.Customer]
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to.url, strings.NewReader(body))
	if err != nil {
		return pawl.Permanent(err)
	}
	now := strconv.FormatInt(time.Now().Unix(), 10)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(headerID, job.ID.String())
	req.Header.Set(headerAt, now)
	req.Header.Set(headerSignatures, sign(to.key, job.ID.String(), now, body))
	res, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, io.LimitReader(res.Body, 64<<10)); err != nil {
		return err
	}
	return outcome(res, job.Args.Customer)
}

// outcome says what an answer means for the job.
func outcome(res *http.Response, customer string) error {
	err := fmt.Errorf("%s answers %s", customer, res.Status)
	switch {
	case res.StatusCode >= 200 && res.StatusCode < 300:
		return nil // a redirection is a failure
	case res.StatusCode == http.StatusTooManyRequests || res.StatusCode == http.StatusServiceUnavailable:
		if d, ok := retryAfter(res.Header.Get("Retry-After"), time.Now()); ok {
			return pawl.RetryAfter(d, err)
		}
	case res.StatusCode == http.StatusGone || res.StatusCode == http.StatusUnauthorized:
		return pawl.Permanent(err) // the same request will not do better
	}
	return err
}

// retryAfter reads the header, seconds or a date, and allows at most a day: the
// receiver is not to be trusted with more.
func retryAfter(s string, now time.Time) (time.Duration, bool) {
	if n, err := strconv.ParseInt(s, 10, 32); err == nil && n >= 0 {
		return min(time.Duration(n)*time.Second, 24*time.Hour), true
	}
	if t, err := http.ParseTime(s); err == nil {
		return min(max(t.Sub(now), 0), 24*time.Hour), true
	}
	return 0, false
}
