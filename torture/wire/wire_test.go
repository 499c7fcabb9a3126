package wire

import (
	"context"
	"crypto/sha1" // #nosec G505 -- it is how Redis names scripts
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	gomysql "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	goredis "github.com/redis/go-redis/v9"

	"github.com/pawlq/pawl/internal/testserver"
)

// A client writes through a proxy. Each way to write is one commit.
type client struct {
	proxy *Proxy
	ways  map[string]func(ctx context.Context, n int) error
	read  func(ctx context.Context, big int) (string, error) // through the proxy; commits nothing
	has   func(ctx context.Context, n int) (bool, error)     // past it
}

func listen(t *testing.T, p Protocol, server, name string) *Proxy {
	t.Helper()
	proxy, err := Listen(p, server, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := proxy.Close(); err != nil {
			t.Error(err)
		}
	})
	return proxy
}

func postgresClient(t *testing.T) *client {
	server := testserver.Postgres(t)
	const socket = ".s.PGSQL.5432"
	c := &client{proxy: listen(t, Postgres, filepath.Join(server.Dir(), socket), socket)}
	direct := dialPostgres(t, server.DSN(""))
	if _, err := direct.Exec(t.Context(), "CREATE TEMP TABLE x (); DROP TABLE IF EXISTS wire; CREATE TABLE wire (n int)"); err != nil {
		t.Fatal(err)
	}
	dsn := fmt.Sprintf("host=%s port=5432 user=postgres dbname=postgres sslmode=disable", c.proxy.Dir())
	with := func(ctx context.Context, f func(*pgx.Conn) error) error {
		conn, err := pgx.Connect(ctx, dsn)
		if err != nil {
			return err
		}
		defer conn.Close(context.WithoutCancel(ctx))
		return f(conn)
	}
	c.ways = map[string]func(context.Context, int) error{
		"prepared": func(ctx context.Context, n int) error {
			return with(ctx, func(conn *pgx.Conn) error { _, err := conn.Exec(ctx, "INSERT INTO wire VALUES ($1)", n); return err })
		},
		"commit": func(ctx context.Context, n int) error {
			return with(ctx, func(conn *pgx.Conn) error {
				return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
					_, err := tx.Exec(ctx, "INSERT INTO wire VALUES ($1)", n)
					return err
				})
			})
		},
	}
	c.read = func(ctx context.Context, big int) (s string, err error) {
		return s, with(ctx, func(conn *pgx.Conn) error {
			if _, err := conn.Exec(ctx, "SELECT n FROM wire LIMIT $1 FOR NO KEY UPDATE", 1); err != nil {
				return err
			}
			return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
				return tx.QueryRow(ctx, "SELECT repeat('x', $1)", big).Scan(&s)
			})
		})
	}
	c.has = func(ctx context.Context, n int) (ok bool, err error) {
		return ok, direct.QueryRow(ctx, "SELECT EXISTS (SELECT FROM wire WHERE n = $1)", n).Scan(&ok)
	}
	return c
}

func dialPostgres(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

func mysqlClient(t *testing.T) *client {
	server := testserver.MariaDB(t)
	if err := server.Exec(t.Context(), "CREATE OR REPLACE DATABASE wire", "CREATE TABLE wire.wire (n INT)"); err != nil {
		t.Fatal(err)
	}
	direct := openMySQL(t, server.Config("wire"))
	c := &client{proxy: listen(t, MySQL, server.Config("").Addr, "server.sock")}
	proxied := server.Config("wire")
	proxied.Addr = c.proxy.Addr()
	with := func(ctx context.Context, f func(*sql.Conn) error) error {
		conn, err := openMySQL(t, proxied).Conn(ctx)
		if err != nil {
			return err
		}
		defer conn.Close()
		return f(conn)
	}
	c.ways = map[string]func(context.Context, int) error{
		"text": func(ctx context.Context, n int) error {
			return with(ctx, func(conn *sql.Conn) error {
				_, err := conn.ExecContext(ctx, fmt.Sprintf("INSERT INTO wire VALUES (%d)", n))
				return err
			})
		},
		"prepared": func(ctx context.Context, n int) error {
			return with(ctx, func(conn *sql.Conn) error {
				_, err := conn.ExecContext(ctx, "INSERT INTO wire VALUES (?)", n)
				return err
			})
		},
		"commit": func(ctx context.Context, n int) error {
			return with(ctx, func(conn *sql.Conn) error {
				tx, err := conn.BeginTx(ctx, nil)
				if err != nil {
					return err
				}
				if _, err := tx.ExecContext(ctx, "INSERT INTO wire VALUES (?)", n); err != nil {
					return errors.Join(err, tx.Rollback())
				}
				return tx.Commit()
			})
		},
		"returning": func(ctx context.Context, n int) error {
			return with(ctx, func(conn *sql.Conn) error {
				return conn.QueryRowContext(ctx, fmt.Sprintf("INSERT INTO wire VALUES (%d) RETURNING n", n)).Scan(&n)
			})
		},
		"with a setting": func(ctx context.Context, n int) error {
			return with(ctx, func(conn *sql.Conn) error {
				_, err := conn.ExecContext(ctx, fmt.Sprintf("SET STATEMENT max_statement_time = 10 FOR INSERT INTO wire VALUES (%d)", n))
				return err
			})
		},
	}
	c.read = func(ctx context.Context, big int) (s string, err error) {
		return s, with(ctx, func(conn *sql.Conn) error {
			if err := conn.QueryRowContext(ctx, "SELECT count(*) FROM wire WHERE n > ? FOR UPDATE", 1).Scan(new(int)); err != nil {
				return err
			}
			tx, err := conn.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			if err := tx.QueryRowContext(ctx, fmt.Sprintf("SELECT repeat('x', %d)", big)).Scan(&s); err != nil {
				return errors.Join(err, tx.Rollback())
			}
			return tx.Commit()
		})
	}
	c.has = func(ctx context.Context, n int) (ok bool, err error) {
		return ok, direct.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM wire WHERE n = ?)", n).Scan(&ok)
	}
	return c
}

func openMySQL(t *testing.T, c *gomysql.Config) *sql.DB {
	t.Helper()
	connector, err := gomysql.NewConnector(c)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(connector)
	t.Cleanup(func() { db.Close() })
	return db
}

func redisClient(t *testing.T) *client {
	server := testserver.Redis(t)
	direct := server.Client(nil)
	t.Cleanup(func() { direct.Close() })
	c := &client{proxy: listen(t, Redis, server.Addr(), "redis.sock")}
	with := func(f func(*goredis.Client) error) error {
		client := goredis.NewClient(&goredis.Options{Network: "unix", Addr: c.proxy.Addr(), MaxRetries: -1})
		defer client.Close()
		return f(client)
	}
	c.ways = map[string]func(context.Context, int) error{
		"script": func(ctx context.Context, n int) error {
			return with(func(r *goredis.Client) error {
				return r.Eval(ctx, "return redis.call('SET', KEYS[1], ARGV[1])", []string{fmt.Sprint("wire", n)}, n).Err()
			})
		},
	}
	c.read = func(ctx context.Context, big int) (s string, err error) {
		return s, with(func(r *goredis.Client) error {
			if err := r.Set(ctx, "big", strings.Repeat("x", big), 0).Err(); err != nil {
				return err
			}
			const script = "#!lua flags=no-writes\nreturn redis.call('GET', KEYS[1])"
			s, err = r.Eval(ctx, script, []string{"big"}).Text()
			if err != nil {
				return err
			}
			return r.EvalSha(ctx, fmt.Sprintf("%x", sha1.Sum([]byte(script))), []string{"big"}).Err()
		})
	}
	c.has = func(ctx context.Context, n int) (bool, error) {
		found, err := direct.Exists(ctx, fmt.Sprint("wire", n)).Result()
		return found == 1, err
	}
	return c
}

var clients = map[string]func(*testing.T) *client{"postgres": postgresClient, "mysql": mysqlClient, "redis": redisClient}

// TestCuts cuts the commit of each way to write, in each way.
func TestCuts(t *testing.T) {
	for name, dial := range clients {
		t.Run(name, func(t *testing.T) {
			c := dial(t)
			n := 0
			for way, write := range c.ways {
				for _, cut := range append(Cuts(), 0) {
					n++
					t.Run(fmt.Sprintf("%s/%v", way, cut), func(t *testing.T) { testCut(t, c, write, cut, n) })
				}
			}
		})
	}
}

func testCut(t *testing.T, c *client, write func(context.Context, int) error, cut Cut, n int) {
	var commits atomic.Int64
	c.proxy.Decide(func() Cut {
		commits.Add(1)
		return cut
	})
	err := write(t.Context(), n)
	c.proxy.Decide(nil)
	if (err == nil) != (cut == 0) {
		t.Errorf("the client got the error %v", err)
	}
	if n := commits.Load(); n != 1 {
		t.Errorf("the proxy saw %d commits, want 1", n)
	}
	has, err := c.has(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	if cut == Before && has || (cut == After || cut == 0) && !has {
		t.Errorf("committed: %v", has)
	}
}

// TestReadsPass reads much and little through the proxy, which sees no commits.
func TestReadsPass(t *testing.T) {
	for name, dial := range clients {
		t.Run(name, func(t *testing.T) {
			c := dial(t)
			c.proxy.Decide(func() Cut { t.Error("a read was taken for a commit"); return 0 })
			for _, big := range []int{0, 1, 100_000, 5_000_000} {
				if s, err := c.read(t.Context(), big); err != nil || s != strings.Repeat("x", big) {
					t.Errorf("of %d bytes %d came back, error %v", big, len(s), err)
				}
			}
			c.proxy.Decide(nil)
		})
	}
}

// TestHold holds up a read until the proxy is released, and ends one by a cut.
func TestHold(t *testing.T) {
	for name, dial := range clients {
		t.Run(name, func(t *testing.T) {
			c := dial(t)
			c.proxy.Hold()
			ended := make(chan error, 1)
			go func() { _, err := c.read(t.Context(), 1); ended <- err }()
			select {
			case err := <-ended:
				t.Fatalf("the call came through, with the error %v", err)
			case <-time.After(50 * time.Millisecond): // a wait that can only miss a fault
			}
			c.proxy.Release()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			c.proxy.Hold()
			go func() { _, err := c.read(t.Context(), 1); ended <- err }()
			var err error
			for waiting := true; waiting; {
				c.proxy.Cut() // it may not have connected yet
				select {
				case err = <-ended:
					waiting = false
				case <-time.After(time.Millisecond):
				}
			}
			if err == nil {
				t.Error("a call through a connection that was cut succeeded")
			}
			c.proxy.Release()
		})
	}
}

// TestWakes loses the first of three wake-ups and doubles the second, and no other
// message.
func TestWakes(t *testing.T) {
	sent := []string{"a", "b", "c"}
	want := []string{"b", "b", "c"}
	check := func(t *testing.T, p *Proxy, tell func(text string) error, next func() (string, error)) {
		n := 0
		p.Wakes(func() int { n++; return []int{0, 2, 1}[n-1] })
		for _, text := range sent {
			if err := tell(text); err != nil {
				t.Fatal(err)
			}
		}
		for _, text := range want {
			if got, err := next(); err != nil || got != text {
				t.Fatalf("%q arrived, not %q; error %v", got, text, err)
			}
		}
	}
	t.Run("postgres", func(t *testing.T) {
		c := postgresClient(t)
		conn := dialPostgres(t, fmt.Sprintf("host=%s port=5432 user=postgres dbname=postgres sslmode=disable", c.proxy.Dir()))
		if _, err := conn.Exec(t.Context(), "LISTEN wire"); err != nil {
			t.Fatal(err)
		}
		direct := dialPostgres(t, testserver.Postgres(t).DSN(""))
		check(t, c.proxy, func(text string) error {
			_, err := direct.Exec(t.Context(), "SELECT pg_notify('wire', $1)", text)
			return err
		}, func() (string, error) {
			n, err := conn.WaitForNotification(t.Context())
			if err != nil {
				return "", err
			}
			return n.Payload, nil
		})
	})
	t.Run("redis", func(t *testing.T) {
		server := testserver.Redis(t)
		proxy := listen(t, Redis, server.Addr(), "redis.sock")
		client := goredis.NewClient(&goredis.Options{Network: "unix", Addr: proxy.Addr()})
		defer client.Close()
		sub := client.Subscribe(t.Context(), "wire")
		defer sub.Close()
		if _, err := sub.Receive(t.Context()); err != nil {
			t.Fatal(err)
		}
		direct := goredis.NewClient(&goredis.Options{Network: "unix", Addr: server.Addr()})
		defer direct.Close()
		check(t, proxy, func(text string) error { return direct.Publish(t.Context(), "wire", text).Err() }, func() (string, error) {
			m, err := sub.ReceiveMessage(t.Context())
			if err != nil {
				return "", err
			}
			return m.Payload, nil
		})
	})
}
