package testserver

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// TestProxyCuts commits in three ways through each fault.
func TestProxyCuts(t *testing.T) {
	server := Postgres(t)
	p := NewProxy(t, server)
	run(t, server, "CREATE TABLE IF NOT EXISTS cut (what text)")
	const insert = "INSERT INTO cut VALUES ($1)"
	ways := map[string]func(ctx context.Context, conn *pgx.Conn, what string) error{
		"statement": func(ctx context.Context, conn *pgx.Conn, what string) error {
			_, err := conn.Exec(ctx, insert, what)
			return err
		},
		"pipeline": func(ctx context.Context, conn *pgx.Conn, what string) error {
			b := new(pgx.Batch)
			b.Queue("SELECT 1")
			b.Queue(insert, what)
			return conn.SendBatch(ctx, b).Close()
		},
		"transaction": func(ctx context.Context, conn *pgx.Conn, what string) error {
			return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, insert, what)
				return err
			})
		},
	}
	for _, fault := range append(Faults(), 0) {
		for name, commit := range ways {
			what := fmt.Sprintf("%v, %s", fault, name)
			conn, err := pgx.Connect(t.Context(), p.DSN(""))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Prepare(t.Context(), insert, insert); err != nil { // which would be a request too
				t.Fatal(err)
			}
			var asked atomic.Int32
			p.Decide(func(sql string) Fault {
				if strings.Contains(sql, insert) || strings.EqualFold(sql, "commit") {
					asked.Add(1)
					return fault
				}
				return 0
			})
			if err := commit(t.Context(), conn, what); (err == nil) != (fault == 0) || asked.Load() != 1 {
				t.Errorf("%s: asked %d times, want 1; error %v", what, asked.Load(), err)
			}
			p.Decide(nil)
			conn.Close(t.Context())
			want := "1"
			if fault == CutBefore {
				want = "0"
			}
			got := ""
			for end := time.Now().Add(10 * time.Second); got != want && time.Now().Before(end); {
				got = run(t, server, "SELECT count(*)::text FROM cut WHERE what = '"+what+"'")
			}
			if got != want {
				t.Errorf("%s: %s rows, want %s", what, got, want)
			}
		}
	}
}

// TestProxyHolds: what a black hole swallowed arrives when it is released, and a
// slow proxy is slow.
func TestProxyHolds(t *testing.T) {
	p := NewProxy(t, Postgres(t))
	conn, err := pgx.Connect(t.Context(), p.DSN(""))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	p.Hold()
	done := make(chan error)
	go func() { done <- conn.Ping(t.Context()) }()
	select {
	case err := <-done:
		t.Errorf("a black hole answered, error %v", err)
	case <-time.After(20 * time.Millisecond): // an answer would take less
	}
	p.Release()
	if err := <-done; err != nil {
		t.Error(err)
	}
	p.Slow(20 * time.Millisecond)
	begun := time.Now()
	if err := conn.Ping(t.Context()); err != nil || time.Since(begun) < 20*time.Millisecond {
		t.Errorf("slow proxy: %v, error %v", time.Since(begun), err)
	}
	p.Strand()
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := conn.Ping(short); err == nil {
		t.Error("a stranded connection answers")
	}
	other, err := pgx.Connect(t.Context(), p.DSN(""))
	if err != nil {
		t.Fatal(err)
	}
	p.Cut()
	if err := other.Ping(t.Context()); err == nil {
		t.Error("a connection that was cut answers")
	}
}
