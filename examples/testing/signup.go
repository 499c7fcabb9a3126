// Package signup shows how a service with background jobs is tested; what is to
// be seen is in its test file. Users sign up, are welcomed by mail, and reminded
// after three days if they have not come back.
//
//	go test -v ./examples/testing
package signup

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/sqlite"
	"github.com/pawlq/pawl/task"
)

// Welcome greets a new user.
type Welcome struct{ User int64 }

func (Welcome) Kind() string { return "welcome" }

// Remind asks a user to come back.
type Remind struct{ User int64 }

func (Remind) Kind() string { return "remind" }

// RemindAfter is how long a user may stay away.
const RemindAfter = 72 * time.Hour

// A Mailer sends mail. It sends only one of those that have the same key.
type Mailer interface {
	Send(ctx context.Context, key, to, text string) error
}

// A Service signs users up.
type Service struct {
	store *sqlite.Store
	q     *pawl.Queue
	mail  Mailer
}

// New returns a Service and makes its table.
func New(ctx context.Context, store *sqlite.Store, q *pawl.Queue, mail Mailer) (*Service, error) {
	_, err := store.DB().ExecContext(ctx, `CREATE TABLE IF NOT EXISTS users (
		id INTEGER PRIMARY KEY, email TEXT NOT NULL UNIQUE, active INTEGER NOT NULL DEFAULT 0)`)
	return &Service{store, q, mail}, err
}

// Tasks returns the handlers of the service.
func (s *Service) Tasks() *task.Mux {
	m := task.NewMux()
	task.Register(m, s.welcome)
	task.Register(m, s.remind)
	return m
}

// SignUp adds a user and what is to be done about it, all or nothing.
func (s *Service) SignUp(ctx context.Context, email string) (id int64, err error) {
	err = s.store.InTx(ctx, func(tx *sql.Tx, w pawl.Writer) error {
		id, err = s.signUp(ctx, tx, s.q.WithTx(w), email)
		return err
	})
	return id, err
}

func (s *Service) signUp(ctx context.Context, tx *sql.Tx, q *pawl.Tx, email string) (int64, error) {
	res, err := tx.ExecContext(ctx, "INSERT INTO users (email) VALUES (?)", email)
	if err != nil {
		return 0, err
	}
	id, err := res.LastInsertId()
	if err != nil {
		return 0, err
	}
	later := task.New(Remind{id})
	later.Delay = RemindAfter
	_, err = q.EnqueueMany(ctx, []*pawl.Request{task.New(Welcome{id}), later})
	return id, err
}

func (s *Service) welcome(ctx context.Context, job *task.Job[Welcome]) error {
	email, _, err := s.user(ctx, job.Args.User)
	if err != nil {
		return err
	}
	return s.mail.Send(ctx, job.ID.String(), email, "Welcome!")
}

func (s *Service) remind(ctx context.Context, job *task.Job[Remind]) error {
	email, active, err := s.user(ctx, job.Args.User)
	if err != nil || active {
		return err
	}
	return s.mail.Send(ctx, job.ID.String(), email, "Come back!")
}

func (s *Service) user(ctx context.Context, id int64) (email string, active bool, err error) {
	row := s.store.DB().QueryRowContext(ctx, "SELECT email, active FROM users WHERE id = ?", id)
	err = row.Scan(&email, &active)
	if errors.Is(err, sql.ErrNoRows) {
		err = pawl.Permanent(fmt.Errorf("no user %d", id)) // no attempt will find one
	}
	return email, active, err
}
