package postgres_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"log/slog"
	"net"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/postgres"
)

// TestListenerRecovers ends the connection that listens.
func TestListenerRecovers(t *testing.T) {
	s := fresh(t, postgres.Options{})
	events := watch(t, beside(t, s, postgres.Options{}))
	for range 3 {
		awaitListening(t, s, events)
		endListener(t, s.Pool(), s.Schema())
		// What was missed is made good by an event about all queues.
		awaitEvent(t, events, func(e pawl.Event) bool { return anyReady(e) && e.Queue == "" })
	}
	awaitListening(t, s, events)
}

func endListener(t *testing.T, pool *pgxpool.Pool, schema string) {
	t.Helper()
	const end = `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE pid <> pg_backend_pid() AND query LIKE '%"' || $1 || '".pawl_event WHERE seq >%'`
	var n int
	if err := pool.QueryRow(t.Context(), end, schema).Scan(&n); err != nil || n == 0 {
		t.Fatalf("ended %d listeners: %v", n, err)
	}
}

func TestListenerSurvivesRestart(t *testing.T) {
	server := testserver.NewPostgres(t, nil)
	s := open(t, openPool(t, server, 4), nil)
	events := watch(t, s)
	awaitListening(t, s, events)
	server.Kill()
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	awaitEvent(t, events, func(e pawl.Event) bool { return anyReady(e) && e.Queue == "" })
	// The Store's own pool may keep connections of before for a while.
	awaitListening(t, open(t, openPool(t, server, 4), nil), events)
}

// TestListenerLeavesReadOnly: a server that takes no writes any more is told of
// nothing, so the listener looks for another, with one warning.
func TestListenerLeavesReadOnly(t *testing.T) {
	server := testserver.NewPostgres(t, nil)
	pool := openPool(t, server, 4)
	writer := open(t, pool, nil)
	log := newWarnings()
	s := open(t, openPool(t, server, 4), &postgres.Options{Logger: slog.New(log)})
	events := watch(t, s)
	awaitListening(t, writer, events)
	exec(t, pool, "ALTER ROLE CURRENT_USER SET default_transaction_read_only = on")
	endListener(t, pool, "public")
	<-log.came
	exec(t, pool, "SET default_transaction_read_only = off; ALTER ROLE CURRENT_USER RESET default_transaction_read_only")
	awaitListening(t, writer, events)
	if n := len(log.came); n > 0 {
		t.Errorf("%d more warnings", n)
	}
}

func exec(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
}

// TestCanNotListen: behind a pooler, or on a server that refuses LISTEN, the
// watchers of this process still learn what happens in it, with one warning.
func TestCanNotListen(t *testing.T) {
	for _, c := range []struct {
		name string
		conn func(net.Conn) net.Conn
	}{
		{"pooler", func(c net.Conn) net.Conn { return &pooled{Conn: c} }},
		{"refused", func(c net.Conn) net.Conn { return &refusing{c} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := fresh(t, postgres.Options{}).Pool().Config()
			dial := config.ConnConfig.DialFunc
			config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := dial(ctx, network, addr)
				if err != nil {
					return nil, err
				}
				return c.conn(conn), nil
			}
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			log := newWarnings()
			s := open(t, pool, &postgres.Options{Schema: newSchema(t, pool), Logger: slog.New(log)})
			events := watch(t, s)
			awaitEvent(t, events, anyReady)
			<-log.came
			for _, w := range ways() {
				w.tx(t, s)
				awaitEvent(t, events, anyReady)
			}
			enqueue(t, s, pawl.Request{})
			awaitEvent(t, events, func(e pawl.Event) bool { return e.Queue == "default" })
			if n := len(log.came); n > 0 {
				t.Errorf("%d more warnings", n)
			}
		})
	}
}

// pooled is a connection like one through a pooler: it names another process
// than the one that serves it, and brings no notifications.
type pooled struct {
	net.Conn
	raw, ready []byte
}

func (c *pooled) Read(p []byte) (int, error) {
	for len(c.ready) == 0 {
		n, err := c.Conn.Read(p)
		c.raw = append(c.raw, p[:n]...)
		c.sort()
		if err != nil && len(c.ready) == 0 {
			return 0, err
		}
	}
	n := copy(p, c.ready)
	c.ready = c.ready[n:]
	return n, nil
}

// sort moves whole messages from raw to ready.
func (c *pooled) sort() {
	for len(c.raw) >= 5 {
		size := 1 + int(binary.BigEndian.Uint32(c.raw[1:]))
		if len(c.raw) < size {
			return
		}
		message := c.raw[:size]
		switch message[0] {
		case 'A': // NotificationResponse
			message = nil
		case 'K': // BackendKeyData
			message[5] ^= 1
		}
		c.ready, c.raw = append(c.ready, message...), c.raw[size:]
	}
}

// refusing is a connection to a server that does not know LISTEN.
type refusing struct{ net.Conn }

func (c *refusing) Write(p []byte) (int, error) {
	return c.Conn.Write(bytes.Replace(p, []byte("LISTEN pawl"), []byte("LISTEX pawl"), 1))
}

// warnings is a log that counts them.
type warnings struct {
	slog.Handler
	came chan string
}

func newWarnings() *warnings {
	return &warnings{slog.DiscardHandler, make(chan string, 100)}
}

func (w *warnings) Enabled(context.Context, slog.Level) bool { return true }

func (w *warnings) Handle(_ context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn {
		w.came <- r.Message
	}
	return nil
}
