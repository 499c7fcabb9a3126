package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"maragu.dev/goqite"
	"maragu.dev/goqite/jobs"
)

// goqiteSystem is goqite on SQLite with its job runner. It deletes finished
// jobs. Its documentation has one connection; the best poll interval is short.
type goqiteSystem struct {
	v  Variant
	db *sql.DB
	q  *goqite.Queue
}

const (
	goqiteBestPoll = time.Millisecond
	goqiteRetry    = time.Second // it retries when a message's timeout is over, which must not be while it runs
)

// goqiteSchema is the table that goqite's documentation has a program create.
const goqiteSchema = `
create table goqite (
  id text primary key default ('m_' || lower(hex(randomblob(16)))),
  created text not null default (strftime('%Y-%m-%dT%H:%M:%fZ')),
  updated text not null default (strftime('%Y-%m-%dT%H:%M:%fZ')),
  queue text not null,
  body blob not null,
  timeout text not null default (strftime('%Y-%m-%dT%H:%M:%fZ')),
  received integer not null default 0,
  priority integer not null default 0
) strict;
create trigger goqite_updated_timestamp after update on goqite begin
  update goqite set updated = strftime('%Y-%m-%dT%H:%M:%fZ') where id = old.id;
end;
create index goqite_queue_priority_created_idx on goqite (queue, priority desc, created);`

func goqiteQueue() *Contender {
	return &Contender{Name: "goqite", Storage: "sqlite", Variants: goqiteVariants, Open: openGoqite}
}

func goqiteVariants(w *Workload) []Variant {
	all := perSlots(w, []int{10, 100}, Variant{Config: best, Retention: deleteNow})
	if w.Works {
		all = append(all, perSlots(w, []int{10}, Variant{Config: defaults, Retention: deleteNow})...)
	}
	return all
}

func openGoqite(ctx context.Context, p *Place, v Variant) (System, error) {
	db, err := openSQLite(p, 1)
	if err != nil {
		return nil, err
	}
	if !p.Joined {
		_, err = db.ExecContext(ctx, goqiteSchema)
	}
	if err != nil {
		_ = db.Close() // the schema is the news
		return nil, err
	}
	timeout := time.Minute
	if v.Retry > 0 {
		timeout = goqiteRetry
	}
	return &goqiteSystem{v, db, goqite.New(goqite.NewOpts{DB: db, Name: queueName, Timeout: timeout})}, nil
}

func (s *goqiteSystem) Enqueue(ctx context.Context, j Job) error {
	m, err := goqiteMessage(j)
	if err != nil {
		return err
	}
	_, err = jobs.Create(ctx, s.q, kind, m)
	return err
}

func (s *goqiteSystem) EnqueueMany(ctx context.Context, batch []Job) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	if err := s.inTx(ctx, tx, batch); err != nil {
		return err
	}
	return tx.Commit()
}

// InTx implements [TxSystem].
func (s *goqiteSystem) InTx(ctx context.Context, batch []Job, hold func()) (time.Time, error) {
	return inSQLTx(ctx, s.db, hold, func(tx *sql.Tx) error { return s.inTx(ctx, tx, batch) })
}

func (s *goqiteSystem) inTx(ctx context.Context, tx *sql.Tx, batch []Job) error {
	for _, j := range batch {
		m, err := goqiteMessage(j)
		if err != nil {
			return err
		}
		if _, err := jobs.CreateTx(ctx, tx, s.q, kind, m); err != nil {
			return err
		}
	}
	return nil
}

func (s *goqiteSystem) Close() error { return s.db.Close() }

// Work implements [System].
func (s *goqiteSystem) Work(ctx context.Context, h Handler) (Workers, error) {
	o := jobs.NewRunnerOpts{Queue: s.q, Limit: s.v.Slots}
	if s.v.Config == best {
		o.PollInterval = goqiteBestPoll
	}
	r := jobs.NewRunner(o)
	r.Register(kind, func(ctx context.Context, body []byte) error {
		var args Args
		if err := json.Unmarshal(body, &args); err != nil {
			return err
		}
		return h(ctx, args.N)
	})
	ctx, cancel := context.WithCancel(ctx)
	w := &goqiteWorkers{s: s, cancel: cancel, done: make(chan struct{})}
	go func() { r.Start(ctx); close(w.done) }()
	return w, nil
}

type goqiteWorkers struct {
	s      *goqiteSystem
	cancel context.CancelFunc
	done   chan struct{}
}

func (w *goqiteWorkers) Settled(ctx context.Context, _ int64) (settled bool, err error) {
	err = w.s.db.QueryRowContext(ctx, "SELECT NOT EXISTS (SELECT 1 FROM goqite)").Scan(&settled)
	return settled, err
}

func (w *goqiteWorkers) Stop() error {
	w.cancel()
	<-w.done
	return nil
}

func goqiteMessage(j Job) (goqite.Message, error) {
	body, err := json.Marshal(j.Args)
	return goqite.Message{Body: body, Delay: j.Delay}, err
}
