package main

import (
	"context"
	"encoding/json"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// rawSystem is the limit on PostgreSQL: what is left of a layout like pawl's
// when all of the contract is taken away but "each job once, and a crash loses
// none". A claim moves a head over an index and leaves one row that holds the
// batch; a settle marks or deletes the jobs of that row. There are no leases
// that end, no retries, no priorities, no types of jobs, and no dispatch.
type rawSystem struct {
	v    Variant
	pool *pgxpool.Pool
}

const rawSchema = `
CREATE TABLE raw_job (
	seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	id uuid NOT NULL UNIQUE,
	xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
	queue text NOT NULL,
	kind text NOT NULL,
	state smallint NOT NULL DEFAULT 0,
	created_at bigint NOT NULL,
	finished_at bigint,
	payload bytea NOT NULL
) WITH (fillfactor = 85);
CREATE INDEX raw_ready ON raw_job (queue, xid, seq) WHERE state = 0;
CREATE TABLE raw_head (queue text, gen bigint, n int NOT NULL, xid xid8 NOT NULL, seq bigint NOT NULL, PRIMARY KEY (queue, gen))
	WITH (fillfactor = 50);
CREATE TABLE raw_claim (fence bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at timestamptz NOT NULL, seqs bigint[] NOT NULL);
INSERT INTO raw_head VALUES ('default', 0, 0, '0', 0)`

const rawInsert = `
INSERT INTO raw_job (id, queue, kind, created_at, payload)
SELECT id, 'default', 'bench', $3, payload FROM unnest($1::uuid[], $2::bytea[]) AS x (id, payload)`

// rawClaim uses raw_ready. It passes no transaction that is still open, so it
// needs to remember none; a new row for the head now and then keeps its dead
// versions few.
const rawClaim = `
WITH h AS MATERIALIZED (
	SELECT * FROM raw_head WHERE queue = 'default' ORDER BY gen DESC LIMIT 1
), c AS MATERIALIZED (
	SELECT j.seq, j.xid, j.id, j.payload FROM h, LATERAL (
		SELECT * FROM raw_job r
		WHERE r.queue = 'default' AND r.state = 0 AND (r.xid, r.seq) > (h.xid, h.seq)
			AND r.xid < pg_snapshot_xmin(pg_current_snapshot())
		ORDER BY r.xid, r.seq LIMIT $1) j
), last AS (
	SELECT xid, seq FROM c ORDER BY xid DESC, seq DESC LIMIT 1
), moved AS (
	UPDATE raw_head t SET xid = last.xid, seq = last.seq, n = (t.n + 1) % 100, gen = t.gen + (t.n = 99)::int
	FROM h, last WHERE t.queue = h.queue AND t.gen = h.gen
), claim AS (
	INSERT INTO raw_claim (at, seqs) SELECT clock_timestamp(), array_agg(seq) FROM c HAVING count(*) > 0 RETURNING fence
)
SELECT claim.fence, c.id, c.payload FROM c, claim`

// The settles use the primary keys of both tables.
const (
	rawDelete = `
WITH s AS (DELETE FROM raw_claim WHERE fence = $1 RETURNING seqs)
DELETE FROM raw_job WHERE seq = ANY ((SELECT seqs FROM s)::bigint[])`
	rawKeep = `
WITH s AS (DELETE FROM raw_claim WHERE fence = $1 RETURNING seqs)
UPDATE raw_job SET state = 4, finished_at = $2 WHERE seq = ANY ((SELECT seqs FROM s)::bigint[])`
)

func rawPostgres() *Contender {
	return &Contender{Name: "raw", Storage: "postgres", Variants: rawVariants, Open: openRaw}
}

func rawVariants(w *Workload) []Variant {
	if w.Name == "bulk" {
		return []Variant{{Retention: history}}
	}
	return engineVariants(w)
}

func openRaw(ctx context.Context, p *Place, v Variant) (System, error) {
	pool, err := p.DB.Pool(ctx, poolSize)
	if err != nil {
		return nil, err
	}
	if err := p.DB.Exec(ctx, rawSchema); err != nil {
		pool.Close()
		return nil, err
	}
	return &rawSystem{v, pool}, nil
}

// Enqueue implements [System].
func (s *rawSystem) Enqueue(ctx context.Context, j Job) error {
	return s.EnqueueMany(ctx, []Job{j})
}

// EnqueueMany implements [System].
func (s *rawSystem) EnqueueMany(ctx context.Context, jobs []Job) error {
	ids, payloads := make([]uuid.UUID, len(jobs)), make([][]byte, len(jobs))
	for i, j := range jobs {
		var err error
		if payloads[i], err = json.Marshal(j.Args); err != nil {
			return err
		}
		if ids[i], err = uuid.NewV7(); err != nil {
			return err
		}
	}
	_, err := s.pool.Exec(ctx, rawInsert, ids, payloads, time.Now().UnixMicro())
	return err
}

// Close implements [System].
func (s *rawSystem) Close() error { s.pool.Close(); return nil }

// Work implements [System].
func (s *rawSystem) Work(ctx context.Context, h Handler) (Workers, error) {
	ctx, cancel := context.WithCancel(ctx)
	w := &rawWorkers{s: s, cancel: cancel}
	for range engineClaimers {
		w.wg.Go(func() {
			if err := w.run(ctx, h); err != nil && ctx.Err() == nil {
				w.failed.CompareAndSwap(nil, &err)
			}
		})
	}
	return w, nil
}

type rawWorkers struct {
	s       *rawSystem
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	settled atomic.Int64
	failed  atomic.Pointer[error]
}

func (w *rawWorkers) run(ctx context.Context, h Handler) error {
	var fence int64
	var claimed int
	for ctx.Err() == nil {
		batch := new(pgx.Batch)
		w.s.settle(batch, fence)
		batch.Queue("SELECT pg_advisory_xact_lock(1)") // the claim then has a snapshot after it
		next, n := int64(0), 0
		batch.Queue(rawClaim, w.s.v.Batch).Query(func(rows pgx.Rows) error {
			var id uuid.UUID
			var payload []byte
			_, err := pgx.ForEachRow(rows, []any{&next, &id, &payload}, func() error { n++; return nil })
			return err
		})
		if err := w.s.pool.SendBatch(ctx, batch).Close(); err != nil { // one transaction, one round trip
			return err
		}
		w.settled.Add(int64(claimed))
		for range n {
			if err := h(ctx, 0); err != nil {
				return err
			}
		}
		fence, claimed = next, n
	}
	return nil
}

func (s *rawSystem) settle(batch *pgx.Batch, fence int64) {
	switch {
	case fence == 0:
	case s.v.Retention == deleteNow:
		batch.Queue(rawDelete, fence)
	default:
		batch.Queue(rawKeep, fence, time.Now().UnixMicro())
	}
}

// Settled implements [Workers].
func (w *rawWorkers) Settled(_ context.Context, n int64) (bool, error) {
	if err := w.failed.Load(); err != nil {
		return false, *err
	}
	return w.settled.Load() >= n, nil
}

// Stop implements [Workers].
func (w *rawWorkers) Stop() error {
	w.cancel()
	w.wg.Wait()
	if err := w.failed.Load(); err != nil {
		return *err
	}
	return nil
}
