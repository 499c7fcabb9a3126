package mysql_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
)

// No statement is larger than the server takes, if each payload is not.
func TestPacketsOfManyPayloads(t *testing.T) {
	const mib = 1 << 20
	server := testserver.NewMariaDB(t, &testserver.MariaDBOptions{Settings: map[string]string{"max-allowed-packet": "8M"}})
	for _, interpolate := range []bool{false, true} {
		s := open(t, openDB(t, server, 2, func(c *driver.Config) { c.InterpolateParams = interpolate }), nil)
		for _, payloads := range [][][]byte{
			{bytes.Repeat([]byte("x"), 3*mib), bytes.Repeat([]byte("x"), 7*mib)},
			{make([]byte, mib), make([]byte, mib), make([]byte, mib), make([]byte, mib), make([]byte, mib)}, // two bytes for each
		} {
			var reqs []*pawl.Request
			for _, p := range payloads {
				reqs = append(reqs, request(pawl.Request{Payload: p}))
			}
			if _, err := s.Enqueue(t.Context(), reqs); err != nil {
				t.Errorf("interpolated %v: %d payloads: %v", interpolate, len(payloads), err)
			}
		}
	}
}

// The tables do not depend on what character set their database has.
func TestCharacterSets(t *testing.T) {
	for _, set := range []string{"utf16", "latin1", "utf8mb4 COLLATE utf8mb4_bin"} {
		db := openDB(t, testserver.MariaDB(t), 5, func(c *driver.Config) {
			if err := testserver.MariaDB(t).Exec(t.Context(), "ALTER DATABASE "+c.DBName+" CHARACTER SET "+set); err != nil {
				t.Fatal(err)
			}
		})
		s := open(t, db, nil)
		first := enqueue(t, s, pawl.Request{UniqueKey: "\u00e4\U0001f980"})
		for key, want := range map[string]pawl.ReceiptStatus{
			"\u00e4\U0001f980": pawl.Duplicate, "\u00c4\U0001f980": pawl.Stored, "\u00e4\U0001f980 ": pawl.Stored,
		} {
			if r := enqueue(t, s, pawl.Request{UniqueKey: key}); r.Status != want {
				t.Errorf("%s: key %q: %v, want %v", set, key, r.Status, want)
			}
		}
		for _, j := range claim(t, s, 3) {
			j.Ref.Locator = 0
			settle(t, s, pawl.Outcome{Ref: j.Ref, Verb: pawl.Nack, Error: "\U0001f980", Delay: time.Hour})
		}
		jobs, err := s.Get(t.Context(), "", first.ID)
		if err != nil || jobs[0].Failures[0].Error != "\U0001f980" {
			t.Errorf("%s: job %+v, error %v", set, jobs[0], err)
		}
	}
}

// A call whose connection is killed before it has committed anything is made again.
func TestKilledConnection(t *testing.T) {
	s := fresh(t, nil)
	id := enqueue(t, s, pawl.Request{}).ID
	tx := beginTx(t, s.DB(), levels[0])
	run(t, tx, "SELECT seq INTO @n FROM pawl_job FOR UPDATE")
	changed := make(chan error, 1)
	go func() {
		_, err := s.Change(t.Context(), pawl.Change{Verb: pawl.Cancel, IDs: []pawl.ID{id}})
		changed <- err
	}()
	const waiting = "SELECT COALESCE(MAX(id), 0) FROM information_schema.processlist WHERE db = DATABASE() AND info LIKE '%FOR UPDATE' AND id <> CONNECTION_ID()"
	thread := 0
	for end := time.Now().Add(20 * time.Second); thread == 0 && time.Now().Before(end); {
		thread = number(t, s.DB(), waiting)
	}
	run(t, s.DB(), fmt.Sprint("KILL ", thread))
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := <-changed; err != nil {
		t.Error(err)
	}
	if got := state(t, s, id); got != pawl.Canceled {
		t.Errorf("the job is %v", got)
	}
}
