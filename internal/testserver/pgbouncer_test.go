package testserver

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
)

// TestPgBouncer: the transactions of one client run on more than one connection
// of the server.
func TestPgBouncer(t *testing.T) {
	b := NewPgBouncer(t, Postgres(t), 2)
	connect := func() *pgx.Conn {
		conn, err := pgx.Connect(t.Context(), b.DSN(""))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close(context.Background()) })
		return conn
	}
	pid := func(q interface {
		QueryRow(context.Context, string, ...any) pgx.Row
	}) (n int) {
		err := q.QueryRow(t.Context(), "SELECT pg_backend_pid()", pgx.QueryExecModeSimpleProtocol).Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	one, other := connect(), connect()
	before := pid(one)
	tx, err := other.Begin(t.Context()) // on the connection that is longest idle
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if held := pid(tx); held != before {
		t.Errorf("the transaction is on connection %d, and not on the free one, %d", held, before)
	}
	if after := pid(one); after == before {
		t.Error("both of a client's transactions ran on one connection")
	}
}
