package main

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// poolSize is how many connections each system may have.
const poolSize = 64

// A Server is a PostgreSQL server.
type Server struct {
	dsn   string
	admin *pgxpool.Pool
}

// Connect connects to a server, as a role that may create databases.
func Connect(ctx context.Context, dsn string) (*Server, error) {
	admin, err := pgxpool.New(ctx, dsn)
	if err != nil {
		return nil, err
	}
	if err := admin.Ping(ctx); err != nil {
		admin.Close()
		return nil, err
	}
	return &Server{dsn: dsn, admin: admin}, nil
}

// Close closes what the server's own connections are.
func (s *Server) Close() { s.admin.Close() }

// Describe says what decides the figures.
func (s *Server) Describe(ctx context.Context) (map[string]string, error) {
	names := []string{"server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size"}
	about := make(map[string]string)
	for _, name := range names {
		var value string
		if err := s.admin.QueryRow(ctx, "SELECT current_setting($1)", name).Scan(&value); err != nil {
			return nil, err
		}
		about["postgres "+name] = value
	}
	return about, nil
}

// Create makes an empty database, with a table for the rows of a business.
func (s *Server) Create(ctx context.Context, name string) (*Database, error) {
	if _, err := s.admin.Exec(ctx, "CREATE DATABASE "+name); err != nil {
		return nil, err
	}
	d := &Database{server: s, name: name}
	var err error
	if d.pool, err = d.Pool(ctx, 4); err != nil {
		return nil, err
	}
	return d, d.Exec(ctx, "CREATE TABLE business (id bigserial PRIMARY KEY, note text NOT NULL)")
}

// A Database belongs to one system.
type Database struct {
	server *Server
	name   string
	pool   *pgxpool.Pool // what the benchmark itself uses
}

// Pool opens connections for a system.
func (d *Database) Pool(ctx context.Context, size int) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(d.server.dsn)
	if err != nil {
		return nil, err
	}
	config.ConnConfig.Database = d.name
	config.MaxConns = int32(size)
	return pgxpool.NewWithConfig(ctx, config)
}

// ConnString is the address of the database, for a pool of a size that a system opens
// itself.
func (d *Database) ConnString(size int) (string, error) {
	if !strings.Contains(d.server.dsn, "://") {
		return fmt.Sprintf("%s dbname=%s pool_max_conns=%d", d.server.dsn, d.name, size), nil
	}
	u, err := url.Parse(d.server.dsn)
	if err != nil {
		return "", err
	}
	q := u.Query()
	q.Set("pool_max_conns", strconv.Itoa(size))
	u.Path, u.RawQuery = "/"+d.name, q.Encode()
	return u.String(), nil
}

// Drop removes the database.
func (d *Database) Drop(ctx context.Context) error {
	d.pool.Close()
	_, err := d.server.admin.Exec(ctx, "DROP DATABASE "+d.name+" WITH (FORCE)")
	return err
}

// Exec runs a statement.
func (d *Database) Exec(ctx context.Context, sql string) error {
	_, err := d.pool.Exec(ctx, sql)
	return err
}

// Int asks for one number.
func (d *Database) Int(ctx context.Context, sql string) (n int64, err error) {
	err = d.pool.QueryRow(ctx, sql).Scan(&n)
	return n, err
}

// WAL is how many bytes of it the server has written.
func (d *Database) WAL(ctx context.Context) (int64, error) {
	return d.Int(ctx, "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint")
}

// Size is how many bytes the database takes.
func (d *Database) Size(ctx context.Context) (int64, error) {
	return d.Int(ctx, "SELECT pg_database_size(current_database())")
}

// HoldSnapshot opens a transaction that keeps all dead rows from being
// vacuumed, until it is released.
func (d *Database) HoldSnapshot(ctx context.Context) (release func(), err error) {
	tx, err := d.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		return nil, err
	}
	release = func() { _ = tx.Rollback(context.WithoutCancel(ctx)) } // it has nothing to lose
	if _, err := tx.Exec(ctx, "SELECT 1"); err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// inPgxTx is [TxSystem.InTx] with pgx.
func inPgxTx(ctx context.Context, pool *pgxpool.Pool, hold func(), enqueue func(pgx.Tx) error) (time.Time, error) {
	tx, err := pool.Begin(ctx)
	if err != nil {
		return time.Time{}, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // does nothing after a commit
	if _, err := tx.Exec(ctx, "INSERT INTO business (note) VALUES ('paid')"); err != nil {
		return time.Time{}, err
	}
	if err := enqueue(tx); err != nil {
		return time.Time{}, err
	}
	if hold != nil {
		hold()
	}
	err = tx.Commit(ctx)
	return time.Now(), err
}
