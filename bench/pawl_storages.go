package main

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/memory"
	"github.com/pawlq/pawl/storage/postgres"
	"github.com/pawlq/pawl/storage/sqlite"
)

func pawlPostgres() *Contender {
	return &Contender{Name: "pawl", Storage: "postgres", Variants: pawlVariants,
		Open: func(ctx context.Context, p *Place, v Variant) (System, error) {
			enqueues, works, closeAll, err := openPostgresStores(ctx, p, v)
			if err != nil {
				return nil, err
			}
			return &pawlOnPostgres{newPawl(v, enqueues, works, closeAll), enqueues}, nil
		}}
}

func pawlSQLite() *Contender {
	return &Contender{Name: "pawl", Storage: "sqlite", Variants: pawlVariants,
		Open: func(ctx context.Context, p *Place, v Variant) (System, error) {
			s, err := openSQLiteStore(ctx, p)
			if err != nil {
				return nil, err
			}
			return &pawlOnSQLite{newPawl(v, s, s, s.Close), s}, nil
		}}
}

func pawlMemory() *Contender {
	return &Contender{Name: "pawl", Storage: "memory", Variants: pawlVariants,
		Open: func(_ context.Context, _ *Place, v Variant) (System, error) {
			s := memory.New(nil)
			return newPawl(v, s, s, s.Close), nil
		}}
}

// openPostgresStores opens one Store, or two on pools of their own if the
// variant is apart.
func openPostgresStores(ctx context.Context, p *Place, v Variant) (a, b *postgres.Store, closeAll func() error, err error) {
	var closes []func() error
	closeAll = func() error {
		var errs []error
		for _, f := range closes {
			errs = append(errs, f())
		}
		return errors.Join(errs...)
	}
	open := func() (*postgres.Store, error) {
		pool, err := p.DB.Pool(ctx, poolSize)
		if err != nil {
			return nil, err
		}
		s, err := postgres.New(ctx, pool, &postgres.Options{PollOnly: v.PollOnly, Logger: quiet()})
		if err != nil {
			pool.Close()
			return nil, err
		}
		closes = append(closes, func() error { err := s.Close(); pool.Close(); return err })
		return s, nil
	}
	if a, err = open(); err != nil {
		return nil, nil, nil, err
	}
	if b = a; v.Apart {
		b, err = open()
	}
	if err != nil {
		return nil, nil, nil, errors.Join(err, closeAll())
	}
	return a, b, closeAll, nil
}

func openSQLiteStore(ctx context.Context, p *Place) (*sqlite.Store, error) {
	s, err := sqlite.Open(ctx, filepath.Join(p.Dir, "pawl.db"), nil)
	if err != nil {
		return nil, err
	}
	err = s.InTx(ctx, func(tx *sql.Tx, _ pawl.Writer) error {
		_, err := tx.ExecContext(ctx, businessTable)
		return err
	})
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// pawlOnPostgres enqueues in transactions that the program has begun itself.
type pawlOnPostgres struct {
	*pawlSystem
	store *postgres.Store
}

// InTx implements [TxSystem].
func (s *pawlOnPostgres) InTx(ctx context.Context, jobs []Job, hold func()) (time.Time, error) {
	return inPgxTx(ctx, s.store.Pool(), hold, func(tx pgx.Tx) error {
		_, err := s.q.WithTx(s.store.Tx(tx)).EnqueueMany(ctx, pawlRequests(jobs))
		return err
	})
}

// pawlOnSQLite enqueues in transactions of the Store, which take turns.
type pawlOnSQLite struct {
	*pawlSystem
	store *sqlite.Store
}

// InTx implements [TxSystem].
func (s *pawlOnSQLite) InTx(ctx context.Context, jobs []Job, hold func()) (time.Time, error) {
	err := s.store.InTx(ctx, func(tx *sql.Tx, w pawl.Writer) error {
		if err := writeBusiness(ctx, tx); err != nil {
			return err
		}
		if _, err := s.q.WithTx(w).EnqueueMany(ctx, pawlRequests(jobs)); err != nil {
			return err
		}
		if hold != nil {
			hold()
		}
		return nil
	})
	return time.Now(), err
}
