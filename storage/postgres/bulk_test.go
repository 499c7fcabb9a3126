package postgres_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/postgres"
)

// TestIDGoesWhileLookedAt deletes a job after requests have met its ID, and before they
// look at what it was that they met.
func TestIDGoesWhileLookedAt(t *testing.T) {
	for name, c := range map[string]struct {
		twice bool
		want  []pawl.ReceiptStatus
	}{
		"key":  {false, []pawl.ReceiptStatus{pawl.Stored, pawl.Duplicate, pawl.Stored}},
		"same": {true, []pawl.ReceiptStatus{pawl.Exists, pawl.Stored, pawl.Exists}},
	} {
		t.Run(name, func(t *testing.T) {
			s := fresh(t, postgres.Options{})
			db, err := sql.Open("pgx", testserver.Postgres(t).DSN(""))
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			there := enqueue(t, s, pawl.Request{UniqueKey: "k", Retention: time.Hour})
			settle(t, s, pawl.Outcome{Ref: claim(t, s, 1)[0].Ref, Verb: pawl.Ack})
			reqs := []*pawl.Request{request(pawl.Request{UniqueKey: "k"}), request(pawl.Request{UniqueKey: "k"}), request(pawl.Request{})}
			reqs[0].ID = there.ID
			if c.twice {
				reqs[2].ID = there.ID
			}
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback()
			gone := false
			got, err := s.SQLTx(watched{tx, func(query string) {
				// With an ID twice, the second request is the first one that comes after a look.
				if look := strings.HasPrefix(query, "SELECT 1 FROM"); !gone && look != c.twice && (look || strings.HasPrefix(query, "INSERT")) {
					gone = true
					if _, err := s.Change(t.Context(), pawl.Change{Verb: pawl.Delete, Queue: there.Queue, IDs: []pawl.ID{there.ID}, From: pawl.Delete.From()}); err != nil {
						t.Error(err)
					}
				}
			}}).Enqueue(t.Context(), reqs)
			if err != nil {
				t.Fatal(err)
			}
			for i, r := range got {
				if r.Status != c.want[i] {
					t.Errorf("receipt %d is %v, want %v", i, r, c.want[i])
				}
			}
			if err := tx.Commit(); err != nil || !gone {
				t.Errorf("commit: %v; deleted: %v", err, gone)
			}
		})
	}
}

// watched tells of statements before they are run.
type watched struct {
	postgres.Querier
	tell func(query string)
}

func (w watched) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	w.tell(query)
	return w.Querier.ExecContext(ctx, query, args...)
}

func (w watched) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	w.tell(query)
	return w.Querier.QueryContext(ctx, query, args...)
}
