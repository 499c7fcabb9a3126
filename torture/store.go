package main

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	gomysql "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	goredis "github.com/redis/go-redis/v9"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/memory"
	"github.com/pawlq/pawl/storage/mysql"
	"github.com/pawlq/pawl/storage/postgres"
	"github.com/pawlq/pawl/storage/redis"
	"github.com/pawlq/pawl/storage/sqlite"
)

// A store is a storage as the roles use it.
type store struct {
	pawl.Storage
	// inTx runs f in a transaction and commits it. nil if there are none.
	inTx  func(ctx context.Context, f func(t tx) error) error
	close func() error

	// For what the controller looks at; one of them at most is not nil.
	pool *pgxpool.Pool
	db   *sql.DB
}

// tx is a transaction: pawl's half of it, and the program's.
type tx struct {
	w pawl.Writer
	// note writes a row about a claim into a table of the program.
	note func(ctx context.Context, table string, ref pawl.Ref) error
}

// Tables of the program.
const (
	orderTable  = "torture_order"  // written with enqueues
	effectTable = "torture_effect" // written with acks
)

const (
	connections = 8 // of most processes
	dialTimeout = 2 * time.Second
)

// openStore opens a storage by name. Its clock is nil but where that is to be set.
func openStore(ctx context.Context, storage, dsn string, conns int, clock func() time.Time) (*store, error) {
	switch storage {
	case "memory":
		s := memory.New(&memory.Options{Clock: clock})
		return &store{Storage: s, close: s.Close}, nil
	case "sqlite":
		return openSQLite(ctx, dsn, clock)
	case "postgres":
		return openPostgres(ctx, dsn, conns, clock)
	case "mysql":
		return openMySQL(ctx, dsn, conns, clock)
	case "redis":
		return openRedis(ctx, dsn, conns, clock)
	}
	return nil, fmt.Errorf("no storage %q", storage)
}

// storages lists what openStore knows.
func storages() []string { return []string{"memory", "sqlite", "postgres", "mysql", "redis"} }

func openSQLite(ctx context.Context, path string, clock func() time.Time) (*store, error) {
	s, err := sqlite.Open(ctx, path, &sqlite.Options{Clock: clock})
	if err != nil {
		return nil, err
	}
	return &store{Storage: s, close: s.Close, db: s.DB(), inTx: func(ctx context.Context, f func(tx) error) error {
		return s.InTx(ctx, func(t *sql.Tx, w pawl.Writer) error { return f(tx{w, noteSQL(t)}) })
	}}, nil
}

func noteSQL(t *sql.Tx) func(context.Context, string, pawl.Ref) error {
	return func(ctx context.Context, table string, ref pawl.Ref) error {
		_, err := t.ExecContext(ctx, "INSERT INTO "+table+" (id, fence) VALUES (?, ?)", ref.ID[:], ref.Fence)
		return err
	}
}

func openPostgres(ctx context.Context, dsn string, conns int, clock func() time.Time) (*store, error) {
	c, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	c.MaxConns, c.ConnConfig.ConnectTimeout = int32(conns), dialTimeout
	pool, err := pgxpool.NewWithConfig(ctx, c)
	if err != nil {
		return nil, err
	}
	s, err := postgres.New(ctx, pool, &postgres.Options{Clock: clock})
	if err != nil {
		pool.Close()
		return nil, err
	}
	inTx := func(ctx context.Context, f func(tx) error) error {
		return s.InTx(ctx, func(t pgx.Tx, w pawl.Writer) error {
			return f(tx{w, func(ctx context.Context, table string, ref pawl.Ref) error {
				_, err := t.Exec(ctx, "INSERT INTO "+table+" (id, fence) VALUES ($1, $2)", ref.ID, ref.Fence)
				return err
			}})
		})
	}
	closeAll := func() error { err := s.Close(); pool.Close(); return err }
	return &store{Storage: s, close: closeAll, pool: pool, inTx: inTx}, nil
}

func openMySQL(ctx context.Context, dsn string, conns int, clock func() time.Time) (*store, error) {
	c, err := gomysql.ParseDSN(dsn)
	if err != nil {
		return nil, err
	}
	c.Logger, c.Timeout = &gomysql.NopLogger{}, dialTimeout
	connector, err := gomysql.NewConnector(c)
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	s, err := mysql.New(ctx, db, &mysql.Options{Clock: clock})
	if err != nil {
		db.Close()
		return nil, err
	}
	inTx := func(ctx context.Context, f func(tx) error) error {
		return s.InTx(ctx, func(t *sql.Tx, w pawl.Writer) error { return f(tx{w, noteSQL(t)}) })
	}
	closeAll := func() error { err := s.Close(); db.Close(); return err }
	return &store{Storage: s, close: closeAll, db: db, inTx: inTx}, nil
}

func openRedis(ctx context.Context, addr string, conns int, clock func() time.Time) (*store, error) {
	client := goredis.NewClient(&goredis.Options{Network: "unix", Addr: addr, DialTimeout: dialTimeout, PoolSize: conns})
	s, err := redis.New(ctx, client, &redis.Options{Clock: clock})
	if err != nil {
		client.Close()
		return nil, err
	}
	return &store{Storage: s, close: func() error { err := s.Close(); client.Close(); return err }}, nil
}
