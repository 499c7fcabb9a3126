package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/mysql"
)

// Settings of the private server: each commit waits for the disk, which is the
// server's default, and there is room for the fixtures.
var mysqlSettings = map[string]string{"innodb-buffer-pool-size": "1G", "innodb-log-file-size": "1G"}

// A MySQLServer is a private MariaDB, or MySQL, server.
type MySQLServer struct {
	server *testserver.MariaDBServer
	admin  *sql.DB
	made   int
}

func startMySQL() (*MySQLServer, error) {
	server, err := testserver.StartMariaDB(&testserver.MariaDBOptions{Fsync: true, MaxConnections: 300, Settings: mysqlSettings})
	if err != nil {
		return nil, err
	}
	admin, err := sql.Open("mysql", server.DSN(""))
	if err != nil {
		return nil, errors.Join(err, server.Stop())
	}
	return &MySQLServer{server: server, admin: admin}, nil
}

// Close ends the server.
func (s *MySQLServer) Close() error { return errors.Join(s.admin.Close(), s.server.Stop()) }

// Describe says what decides the figures.
func (s *MySQLServer) Describe(ctx context.Context) (map[string]string, error) {
	about := make(map[string]string)
	for _, name := range []string{"version", "innodb_flush_log_at_trx_commit", "innodb_buffer_pool_size", "log_bin"} {
		var value string
		if err := s.admin.QueryRowContext(ctx, "SELECT @@"+name).Scan(&value); err != nil {
			return nil, err
		}
		about["mysql "+name] = value
	}
	return about, nil
}

// Create makes an empty database, with a table for the rows of a business.
func (s *MySQLServer) Create(ctx context.Context) (*MySQLDatabase, error) {
	s.made++
	name := fmt.Sprintf("bench_%d", s.made)
	d := &MySQLDatabase{s, name, s.server.DSN(name)}
	if _, err := s.admin.ExecContext(ctx, "CREATE DATABASE "+d.name); err != nil {
		return nil, err
	}
	_, err := s.admin.ExecContext(ctx, "CREATE TABLE "+d.name+".business (id BIGINT AUTO_INCREMENT PRIMARY KEY, note TEXT NOT NULL)")
	return d, err
}

// A MySQLDatabase belongs to one system.
type MySQLDatabase struct {
	server *MySQLServer // nil if another process has started it
	name   string
	dsn    string
}

// Drop removes the database.
func (d *MySQLDatabase) Drop(ctx context.Context) error {
	_, err := d.server.admin.ExecContext(ctx, "DROP DATABASE "+d.name)
	return err
}

// Open makes a pool for a system.
func (d *MySQLDatabase) Open() (*sql.DB, error) {
	config, err := driver.ParseDSN(d.dsn)
	if err != nil {
		return nil, err
	}
	config.InterpolateParams = true
	connector, err := driver.NewConnector(config)
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(poolSize)
	db.SetMaxIdleConns(poolSize)
	return db, nil
}

// ServerCPU implements [onServer].
func (d *MySQLDatabase) ServerCPU(context.Context) (time.Duration, error) {
	return d.server.server.CPU(), nil
}

// Bytes implements [onServer]: what the files of the tables take.
func (d *MySQLDatabase) Bytes(ctx context.Context) (n int64, err error) {
	const files = "SELECT COALESCE(SUM(file_size), 0) FROM information_schema.innodb_sys_tablespaces WHERE name LIKE ?"
	err = d.server.admin.QueryRowContext(ctx, files, d.name+"/%").Scan(&n)
	return n, err
}

// Logged implements [onServer]: bytes of the redo log.
func (d *MySQLDatabase) Logged(ctx context.Context) (figure string, n int64, err error) {
	const lsn = "SHOW GLOBAL STATUS WHERE Variable_name IN ('Innodb_lsn_current', 'Innodb_redo_log_current_lsn')" // MariaDB's, MySQL's
	var name string
	err = d.server.admin.QueryRowContext(ctx, lsn).Scan(&name, &n)
	return "redo-per-job", n, err
}

// pawlOnMySQL is pawl with what its server costs. It enqueues in transactions that
// the program has begun itself.
type pawlOnMySQL struct {
	*pawlSystem
	*MySQLDatabase
	store *mysql.Store
	db    *sql.DB
}

// InTx implements [TxSystem].
func (s *pawlOnMySQL) InTx(ctx context.Context, jobs []Job, hold func()) (time.Time, error) {
	return inSQLTx(ctx, s.db, hold, func(tx *sql.Tx) error {
		_, err := s.q.WithTx(s.store.Tx(tx)).EnqueueMany(ctx, pawlRequests(jobs))
		return err
	})
}

func pawlMySQL() *Contender {
	return &Contender{Name: "pawl", Storage: "mysql", Variants: pawlVariants,
		Open: func(ctx context.Context, p *Place, v Variant) (System, error) { return openPawlMySQL(ctx, p, v) }}
}

type engineOnMySQL struct {
	*engine
	*MySQLDatabase
}

func engineMySQL() *Contender {
	return &Contender{Name: "engine", Storage: "mysql", Variants: engineVariants,
		Open: func(ctx context.Context, p *Place, v Variant) (System, error) {
			s, err := openPawlMySQL(ctx, p, v)
			if err != nil {
				return nil, err
			}
			return &engineOnMySQL{&engine{s.pawlSystem, v.Batch}, p.MySQL}, nil
		}}
}

// openPawlMySQL opens one Store, or two on pools of their own if the variant is
// apart.
func openPawlMySQL(ctx context.Context, p *Place, v Variant) (*pawlOnMySQL, error) {
	var closes []func() error
	closeAll := func() (err error) {
		for _, f := range closes {
			err = errors.Join(err, f())
		}
		return err
	}
	open := func() (*mysql.Store, *sql.DB, error) {
		db, err := p.MySQL.Open()
		if err != nil {
			return nil, nil, err
		}
		s, err := mysql.New(ctx, db, &mysql.Options{Logger: quiet()})
		if err != nil {
			return nil, nil, errors.Join(err, db.Close())
		}
		closes = append(closes, s.Close, db.Close)
		return s, db, nil
	}
	a, db, err := open()
	b := a
	if err == nil && v.Apart {
		b, _, err = open()
	}
	if err != nil {
		return nil, errors.Join(err, closeAll())
	}
	return &pawlOnMySQL{newPawl(v, a, b, closeAll), p.MySQL, a, db}, nil
}
