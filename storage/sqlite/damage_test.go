package sqlite_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/sqlite"
)

// A hand can't write what would stop a queue: it is refused, and the jobs are
// claimed as before.
func TestDamageIsRefused(t *testing.T) {
	s := open(t, nil)
	enqueue(t, s, requests(2)...)
	for _, damage := range []string{
		"attempt = 'many'", "attempt = 9223372036854775807", "lease = 9223372036854775807", "at = 'soon'",
		"retention = 9223372036854775807", "umode = 300", "held = 5", "last_verb = 300", "state = 0", "id = x'01'",
		"kind = x'00ff'", "payload = 'text'",
	} {
		if _, err := s.DB().ExecContext(t.Context(), "UPDATE pawl_job SET "+damage); err == nil {
			t.Errorf("%s was accepted", damage)
		}
	}
	if n := len(claim(t, s, 10)); n != 2 {
		t.Errorf("claimed %d jobs, want 2", n)
	}
}

// A row that is in a file without the checks is buried by whatever meets it,
// and the other jobs go on.
func TestDamageStopsNoQueue(t *testing.T) {
	for i, damage := range []string{
		"attempt = 'many'", "attempt = 9223372036854775807", "lease = 9223372036854775807", "umode = 300",
		"last_verb = 300", "held = 5", "priority = 'high'", "kind = x'00ff'", "counts = x'00'", "created_at = 1.5", "id = x'01'",
		"fence = 'none', max_rescues = 'all'", "start_before = 'soon'", "meta = x'00', payload = 'secret', umode = 'x'",
	} {
		testDamage(t, fmt.Sprint(i), damage, dropChecks)
	}
}

// The same is true of a row that was written without heeding the checks.
func TestDamageUnderChecks(t *testing.T) {
	for i, damage := range []string{
		"attempt = 9223372036854775807", "lease = 9223372036854775807", "umode = 300", "last_verb = 300", "held = 5", "id = x'01'",
	} {
		testDamage(t, fmt.Sprint(i), damage, func(*testing.T, *sqlite.Store) {})
	}
}

// testDamage damages a job in each state.
func testDamage(t *testing.T, name, damage string, prepare func(*testing.T, *sqlite.Store)) {
	for state, meet := range map[string]func(*testing.T, *damagedStore){
		"scheduled": meetScheduled, "ready": meetReady, "running": meetRunning, "expired": meetExpired,
		"key": meetKey, "change": meetChange,
	} {
		t.Run(name+" "+state, func(t *testing.T) {
			d := &damagedStore{clock: newClock(), damage: damage}
			d.Store = open(t, &sqlite.Options{
				Clock: d.clock.Now, Synchronous: sqlite.Off, Logger: slog.New(slog.NewTextHandler(&d.log, nil)),
			})
			prepare(t, d.Store)
			meet(t, d)
		})
	}
}

// damagedStore is a store whose second job is damaged by a statement.
type damagedStore struct {
	*sqlite.Store
	clock  *clock
	damage string
	log    bytes.Buffer
}

func meetScheduled(t *testing.T, d *damagedStore) {
	enqueue(t, d, requests(3, func(r *pawl.Request) { r.Delay = time.Second })...)
	d.harm(t)
	d.clock.Advance(time.Minute)
	settle(t, d, ack(claim(t, d, 10))...)
	d.check(t)
}

func meetReady(t *testing.T, d *damagedStore) {
	enqueue(t, d, requests(3)...)
	d.harm(t)
	settle(t, d, ack(claim(t, d, 10))...)
	d.check(t)
}

// meetRunning has a heartbeat and an ack that name the damaged job too.
func meetRunning(t *testing.T, d *damagedStore) {
	enqueue(t, d, requests(3)...)
	jobs := claim(t, d, 10)
	d.harm(t)
	var renewals []pawl.Renewal
	for _, j := range jobs {
		renewals = append(renewals, pawl.Renewal{Ref: j.Ref, Lease: time.Minute})
	}
	if _, err := d.Extend(t.Context(), renewals); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Settle(t.Context(), ack(jobs)); err != nil {
		t.Fatal(err)
	}
	if c := count(t, d); c.Completed < 2 {
		t.Errorf("%+v, want the sound ones completed", c)
	}
	d.expire(t)
}

func meetExpired(t *testing.T, d *damagedStore) {
	enqueue(t, d, requests(3)...)
	claim(t, d, 10)
	d.harm(t)
	d.expire(t)
	settle(t, d, ack(claim(t, d, 10))...)
	d.check(t)
}

// meetKey enqueues a job whose key the damaged one holds.
func meetKey(t *testing.T, d *damagedStore) {
	enqueue(t, d, requests(3, func(r *pawl.Request) { r.UniqueKey = r.ID.String() })...)
	key := keyOf(t, d)
	d.harm(t)
	enqueue(t, d, request(func(r *pawl.Request) { r.UniqueKey = key }))
	settle(t, d, ack(claim(t, d, 10))...)
	if c := count(t, d); c.Completed < 2 || c.Ready > 0 {
		t.Errorf("%+v, want the sound ones completed", c)
	}
}

func keyOf(t *testing.T, d *damagedStore) (key string) {
	t.Helper()
	if err := d.DB().QueryRowContext(t.Context(), "SELECT ukey FROM pawl_job WHERE seq = 2").Scan(&key); err != nil {
		t.Fatal(err)
	}
	return key
}

// meetChange cancels all jobs.
func meetChange(t *testing.T, d *damagedStore) {
	var c pawl.Change
	for _, r := range enqueue(t, d, requests(3)...) {
		c.IDs = append(c.IDs, r.ID)
	}
	c.Verb, c.From = pawl.Cancel, pawl.Cancel.From()
	d.harm(t)
	if _, err := d.Change(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if c := count(t, d); c.Canceled < 2 {
		t.Errorf("%+v, want the sound ones canceled", c)
	}
}

// expire ends all leases.
func (d *damagedStore) expire(t *testing.T) {
	t.Helper()
	d.clock.Advance(2 * time.Minute)
	if _, err := d.Sweep(t.Context(), pawl.SweepSpec{Limit: 100}); err != nil {
		t.Fatal(err)
	}
	if c := count(t, d); c.Running > 0 {
		t.Errorf("%+v, want none running", c)
	}
}

// harm damages the second job.
func (d *damagedStore) harm(t *testing.T) {
	t.Helper()
	onConn(t, d.Store,
		"PRAGMA ignore_check_constraints = ON",
		"UPDATE pawl_job SET "+d.damage+" WHERE seq = 2",
		"PRAGMA ignore_check_constraints = OFF")
}

// check fails unless two jobs are completed, and the third is too or is buried,
// can be read and says why.
func (d *damagedStore) check(t *testing.T) {
	t.Helper()
	c := count(t, d)
	if c.Completed+c.Buried != 3 || c.Buried > 1 {
		t.Fatalf("%+v, want all completed but the damaged one", c)
	}
	page, err := d.List(t.Context(), pawl.ListSpec{Limit: 10, Payloads: true})
	if err != nil || len(page.Jobs) != 3 {
		t.Fatal(err, len(page.Jobs))
	}
	for _, j := range page.Jobs {
		if n := len(j.Failures); j.State == pawl.Buried && (n == 0 || !strings.Contains(j.Failures[n-1].Error, "damaged")) {
			t.Errorf("the failures are %+v", j.Failures)
		}
	}
	if log := d.log.String(); c.Buried != int64(strings.Count(log, "damaged")) || strings.Contains(log, "secret") {
		t.Errorf("logged: %s", log)
	}
}

// dropChecks makes the table of jobs one without checks that is not strict.
func dropChecks(t *testing.T, s *sqlite.Store) {
	t.Helper()
	onConn(t, s,
		"PRAGMA writable_schema = ON",
		`UPDATE sqlite_master SET sql = substr(sql, 1, instr(sql, '-- What a hand') - 1) || 'CHECK (1))' WHERE name = 'pawl_job'`,
		"PRAGMA writable_schema = OFF",
		"PRAGMA schema_version = 1000")
}

// onConn runs statements on one connection.
func onConn(t *testing.T, s *sqlite.Store, texts ...string) {
	t.Helper()
	conn, err := s.DB().Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, text := range texts {
		if _, err := conn.ExecContext(t.Context(), text); err != nil {
			t.Fatal(fmt.Errorf("%s: %w", text, err))
		}
	}
}
