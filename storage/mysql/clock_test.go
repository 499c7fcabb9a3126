package mysql_test

import (
	"database/sql"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
)

// The server's clock decides, in UTC, whatever the time zone of a session is.
func TestServerClock(t *testing.T) {
	db := openDB(t, testserver.MariaDB(t), 4, func(c *driver.Config) {
		c.Params = map[string]string{"time_zone": "'-11:00'"}
	})
	s := open(t, db, nil)
	near := func(what string, got, want time.Time) {
		t.Helper()
		if d := got.Sub(want).Abs(); d > time.Minute {
			t.Errorf("%s is %v, want about %v", what, got, want)
		}
	}
	now := time.Now()
	for what, r := range map[string]pawl.Request{
		"one statement": {}, "a transaction": {UniqueKey: "k"}, "a point in time": {RunAt: now.Add(time.Hour)},
		"a delay": {Delay: time.Hour}, "a delay with a key": {Delay: time.Hour, UniqueKey: "l"}, "an end": {StartBefore: now.Add(time.Hour)},
	} {
		id := enqueue(t, s, r).ID
		jobs, err := s.Get(t.Context(), "", id)
		if err != nil || jobs[0] == nil {
			t.Fatal(err)
		}
		j := jobs[0]
		near(what+": CreatedAt", j.CreatedAt, now)
		later := now
		if r.Delay > 0 || !r.RunAt.IsZero() {
			later = now.Add(time.Hour)
		}
		near(what+": RunAt", j.RunAt, later)
		if want := map[bool]pawl.State{true: pawl.Scheduled, false: pawl.Ready}[later != now]; j.State != want {
			t.Errorf("%s: the job is %v, want %v", what, j.State, want)
		}
	}
	for _, j := range claim(t, s, 3) {
		near("ClaimedAt", j.ClaimedAt, now)
		near("LeaseUntil", j.LeaseUntil, now.Add(time.Minute))
		settle(t, s, pawl.Outcome{Ref: j.Ref, Verb: pawl.Ack})
	}
	var at sql.NullInt64
	if err := db.QueryRow("SELECT MAX(moment) FROM pawl_job WHERE state = 4").Scan(&at); err != nil {
		t.Fatal(err)
	}
	near("the end", time.UnixMicro(at.Int64), now)
}
