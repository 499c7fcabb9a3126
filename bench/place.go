package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"sync"

	"github.com/pawlq/pawl/internal/testserver"
)

// A Place is where one system keeps its jobs.
type Place struct {
	Dir string    // an empty folder
	DB  *Database // an empty database, on PostgreSQL only
	// MySQL is an empty database, there only.
	MySQL *MySQLDatabase
	// Redis is where the server of the system is, once it has one.
	Redis string
	// Joined places have been made by another process, with all that is in them.
	Joined bool
}

// Remove removes what is in the place, which nobody may use any more.
func (p *Place) Remove(ctx context.Context) error {
	err := os.RemoveAll(p.Dir)
	if p.DB != nil {
		err = errors.Join(err, p.DB.Drop(ctx))
	}
	if p.MySQL != nil {
		err = errors.Join(err, p.MySQL.Drop(ctx))
	}
	return err
}

// Places makes places on the servers, which it starts when the first one is
// asked for unless it was given an address.
type Places struct {
	PostgresDSN string

	mu       sync.Mutex
	made     int
	postgres *Server
	private  *testserver.PostgresServer
	mysql    *MySQLServer
}

// New makes an empty place for a storage.
func (p *Places) New(ctx context.Context, storage string) (*Place, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	dir, err := os.MkdirTemp("", "pawl-bench-*")
	if err != nil {
		return nil, err
	}
	place := &Place{Dir: dir}
	switch storage {
	case "postgres":
		err = p.onPostgres(ctx, place)
	case "mysql":
		err = p.onMySQL(ctx, place)
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return place, nil
}

func (p *Places) onPostgres(ctx context.Context, place *Place) (err error) {
	if err := p.startPostgres(ctx); err != nil {
		return err
	}
	p.made++
	place.DB, err = p.postgres.Create(ctx, fmt.Sprintf("pawl_bench_%d_%d_%08x", os.Getpid(), p.made, rand.Uint32()))
	return err
}

func (p *Places) onMySQL(ctx context.Context, place *Place) (err error) {
	if p.mysql == nil {
		if p.mysql, err = startMySQL(); err != nil {
			return err
		}
	}
	place.MySQL, err = p.mysql.Create(ctx)
	return err
}

// Settings of the private server: durable, and with room for the fixtures.
// Checkpoints come between the cells instead of within them.
var postgresSettings = map[string]string{
	"shared_buffers": "1GB", "max_wal_size": "8GB", "checkpoint_timeout": "30min",
}

const postgresConnections = 300

func (p *Places) startPostgres(ctx context.Context) (err error) {
	if p.postgres != nil {
		return nil
	}
	dsn := p.PostgresDSN
	if dsn == "" {
		o := &testserver.PostgresOptions{Fsync: true, MaxConnections: postgresConnections, Settings: postgresSettings}
		if p.private, err = testserver.StartPostgres(o); err != nil {
			return err
		}
		dsn = p.private.DSN("")
	}
	p.postgres, err = Connect(ctx, dsn)
	return err
}

// Close ends the servers that were started.
func (p *Places) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.postgres != nil {
		p.postgres.Close()
	}
	var err error
	if p.private != nil {
		err = p.private.Stop()
	}
	if p.mysql != nil {
		err = errors.Join(err, p.mysql.Close())
	}
	return err
}

// Versions describes the servers that are in use.
func (p *Places) Versions(ctx context.Context) (map[string]string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make(map[string]string)
	if p.postgres != nil {
		about, err := p.postgres.Describe(ctx)
		if err != nil {
			return nil, err
		}
		maps.Copy(all, about)
	}
	if p.mysql != nil {
		about, err := p.mysql.Describe(ctx)
		if err != nil {
			return nil, err
		}
		maps.Copy(all, about)
	}
	return all, nil
}
