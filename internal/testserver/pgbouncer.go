package testserver

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// A PgBouncer is a private pooler before a PostgreSQL server. It hands a
// connection of the server on after each transaction.
type PgBouncer struct {
	dir string
	p   *process
}

// bouncerConfig makes each transaction of a client meet another connection of
// the server than the one before. Every user becomes the superuser.
const bouncerConfig = `[databases]
* = host=%s port=5432 user=postgres
[pgbouncer]
listen_addr =
listen_port = 6432
unix_socket_dir = %s
auth_type = any
pool_mode = transaction
server_round_robin = 1
server_reset_query =
default_pool_size = %d
max_client_conn = 500
`

// NewPgBouncer starts a pooler for one test, with at most n connections to the
// server.
func NewPgBouncer(t testing.TB, server *PostgresServer, n int) *PgBouncer {
	t.Helper()
	program := pgBouncerProgram()
	if program == "" {
		missing(t, "PgBouncer")
	}
	b, err := startPgBouncer(program, server, n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func pgBouncerProgram() string {
	for _, path := range []string{"pgbouncer", "/usr/sbin/pgbouncer"} {
		if path, err := exec.LookPath(path); err == nil {
			return path
		}
	}
	return ""
}

func startPgBouncer(program string, server *PostgresServer, n int) (*PgBouncer, error) {
	as, err := account()
	if err != nil {
		return nil, err
	}
	dir, err := folder("pawl-pgb-*", as)
	if err != nil {
		return nil, err
	}
	b := &PgBouncer{dir: dir}
	config := filepath.Join(dir, "pgbouncer.ini")
	err = os.WriteFile(config, fmt.Appendf(nil, bouncerConfig, server.Dir(), dir, n), 0o644)
	if err == nil {
		b.p, err = start(program, []string{config}, dir, as)
	}
	if err == nil && !answers(b.p, b.DSN(""), time.Now().Add(startTimeout)) {
		b.p.kill()
		err = fmt.Errorf("PgBouncer did not start: %s", b.p.log)
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return b, nil
}

// DSN connects to the named database through the pooler; empty means "postgres".
func (b *PgBouncer) DSN(database string) string { return dsn(b.dir, 6432, database) }

func (b *PgBouncer) stop() error {
	err := b.p.stop(syscall.SIGTERM) // at once, whoever is connected
	if err != nil {
		err = fmt.Errorf("testserver: PgBouncer %w", err)
	}
	return errors.Join(err, os.RemoveAll(b.dir))
}
