package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/torture/wire"
)

// A place is where the jobs of a run are, and what can be done to it. Functions
// that a storage has no use for are nil.
type place struct {
	storage string
	dsn     string // through the proxy, if there is one
	direct  string
	aof     string // folder of Redis's files
	proxy   *wire.Proxy
	disk    *disk // that it is on, if that is one of its own

	kill     func()                                           // ends the server as a crash does
	halt     func() error                                     // ends it in order
	start    func() error                                     // starts it again
	running  func() bool                                      // it has not ended
	backends func(ctx context.Context, s *store) (int, error) // ends some connections inside the server
	flush    func(ctx context.Context) error                  // makes it forget its scripts
	stop     func() error                                     // ends it for good
}

// newPlace makes an empty place. It may use dir. If size is not empty, it is on a disk of its
// own.
func newPlace(ctx context.Context, storage, dir, size string) (p *place, err error) {
	var d *disk
	parent := ""
	if size != "" {
		if d, err = newDisk(size); err != nil {
			return nil, err
		}
		dir, parent = d.dir, d.dir
	}
	switch storage {
	case "sqlite":
		path := filepath.Join(dir, "jobs.db")
		p = &place{dsn: path, direct: path}
	case "postgres":
		p, err = postgresPlace(parent)
	case "mysql":
		p, err = mysqlPlace(ctx, parent)
	case "redis":
		p, err = redisPlace(parent)
	default:
		p = new(place)
	}
	if err != nil && d != nil {
		return nil, errors.Join(err, d.close())
	}
	if err != nil {
		return nil, err
	}
	p.storage, p.disk = storage, d
	return p, nil
}

func postgresPlace(parent string) (*place, error) {
	server, err := testserver.StartPostgres(&testserver.PostgresOptions{MaxConnections: 300, Parent: parent,
		Settings: map[string]string{"autovacuum_naptime": "5s", "max_wal_size": postgresLog(parent)}})
	if err != nil {
		return nil, err
	}
	const socket = ".s.PGSQL.5432"
	proxy, err := wire.Listen(wire.Postgres, filepath.Join(server.Dir(), socket), socket)
	if err != nil {
		return nil, errors.Join(err, server.Stop())
	}
	dsn := fmt.Sprintf("host=%s port=5432 user=postgres dbname=postgres sslmode=disable", proxy.Dir())
	return &place{dsn: dsn, direct: server.DSN("") + " application_name=controller", proxy: proxy,
		kill: server.Kill, halt: server.Halt, start: server.Start, running: server.Running, stop: server.Stop, backends: endPostgres}, nil
}

// postgresLog is how long the log may be: on a disk of its own that must not be full by it.
func postgresLog(parent string) string {
	if parent != "" {
		return "64MB"
	}
	return "4GB"
}

// endPostgres ends up to three connections of the program.
func endPostgres(ctx context.Context, s *store) (n int, err error) {
	err = s.pool.QueryRow(ctx, `SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity
		WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND application_name <> 'controller'
		ORDER BY state = 'active' DESC, random() LIMIT 3) x`).Scan(&n)
	return n, err
}

func mysqlPlace(ctx context.Context, parent string) (*place, error) {
	o := &testserver.MariaDBOptions{MaxConnections: 300, Parent: parent}
	if parent != "" {
		// All tables grow in one file, by little: else some have room of their own for long.
		o.Settings = map[string]string{"innodb-log-file-size": "32M", "innodb-file-per-table": "OFF", "innodb-autoextend-increment": "1"}
	}
	server, err := testserver.StartMariaDB(o)
	if err != nil {
		return nil, err
	}
	const name = "torture"
	if err := server.Exec(ctx, "CREATE DATABASE "+name); err != nil {
		return nil, errors.Join(err, server.Stop())
	}
	c := server.Config(name)
	proxy, err := wire.Listen(wire.MySQL, c.Addr, "server.sock")
	if err != nil {
		return nil, errors.Join(err, server.Stop())
	}
	proxied := server.Config(name)
	proxied.Addr = proxy.Addr()
	return &place{dsn: proxied.FormatDSN(), direct: c.FormatDSN(), proxy: proxy,
		kill: server.Kill, halt: server.Halt, start: server.Start, running: server.Running, stop: server.Stop, backends: endMySQL}, nil
}

// endMySQL ends up to three connections.
func endMySQL(ctx context.Context, s *store) (n int, err error) {
	rows, err := s.db.QueryContext(ctx, `SELECT id FROM information_schema.processlist
		WHERE user = 'root' AND id <> connection_id() ORDER BY command = 'Sleep', rand() LIMIT 3`)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	var ids []int64
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return 0, err
		}
		ids = append(ids, id)
	}
	if err := rows.Err(); err != nil {
		return 0, err
	}
	for _, id := range ids {
		if _, err := s.db.ExecContext(ctx, fmt.Sprint("KILL ", id)); err == nil {
			n++ // another one has ended meanwhile
		}
	}
	return n, nil
}

func redisPlace(parent string) (*place, error) {
	server, err := testserver.StartRedis(&testserver.RedisOptions{Fsync: "always", Parent: parent,
		Settings: map[string]string{"auto-aof-rewrite-percentage": "0"}}) // it is a witness, see readAOF
	if err != nil {
		return nil, err
	}
	proxy, err := wire.Listen(wire.Redis, server.Addr(), "redis.sock")
	if err != nil {
		return nil, errors.Join(err, server.Stop())
	}
	with := func(f func(c *goredis.Client) error) error {
		client := server.Client(&goredis.Options{MaxRetries: -1})
		defer client.Close()
		return f(client)
	}
	p := &place{dsn: proxy.Addr(), direct: server.Addr(), proxy: proxy, kill: server.Kill, start: server.Start, running: server.Running, stop: server.Stop}
	p.aof = filepath.Dir(server.Addr())
	p.flush = func(ctx context.Context) error {
		return with(func(c *goredis.Client) error { return c.ScriptFlush(ctx).Err() })
	}
	p.halt = func() error {
		ctx, cancel := context.WithTimeout(context.Background(), haltTimeout)
		defer cancel()
		_ = with(func(c *goredis.Client) error { return c.ShutdownNoSave(ctx).Err() }) // it answers by going
		server.Kill()                                                                  // waits for its end
		return nil
	}
	p.backends = func(ctx context.Context, _ *store) (n int, err error) {
		err = with(func(c *goredis.Client) error {
			killed, err := c.ClientKillByFilter(ctx, "TYPE", "normal", "SKIPME", "yes").Result()
			n = int(killed)
			return err
		})
		return n, err
	}
	return p, nil
}

const haltTimeout = 10 * time.Second

// close ends the place.
func (p *place) close() error {
	var err error
	if p.proxy != nil {
		err = p.proxy.Close()
	}
	if p.stop != nil {
		err = errors.Join(err, p.stop())
	}
	if p.disk != nil {
		err = errors.Join(err, p.disk.close())
	}
	return err
}
