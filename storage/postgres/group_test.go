package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
)

var groupSchemas atomic.Int64

// groupStore opens a Store in a schema of its own.
func groupStore(t *testing.T) *Store {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), testserver.Postgres(t).DSN("")+" pool_max_conns=20")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	schema := fmt.Sprintf("group_%d", groupSchemas.Add(1))
	run := func(sql string) {
		if _, err := pool.Exec(context.Background(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Error(err)
		}
	}
	run("CREATE SCHEMA " + schema)
	t.Cleanup(func() { run("DROP SCHEMA " + schema + " CASCADE") })
	s, err := New(t.Context(), pool, &Options{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func groupRequest(key string) *pawl.Request {
	return &pawl.Request{
		ID: uuid.Must(uuid.NewV7()), Queue: "q", Kind: "k", UniqueKey: key, MaxAttempts: 1, MaxRescues: 1,
		MaxDepth: pawl.Unlimited, WhenFull: pawl.Reject, Retention: time.Hour,
	}
}

// batchOf are calls that share an insert.
func batchOf(ctx context.Context, reqs ...*pawl.Request) (batch []*single) {
	for _, r := range reqs {
		batch = append(batch, &single{ctx: ctx, reqs: []*pawl.Request{r}, done: make(chan struct{})})
	}
	return batch
}

func (c *single) status(t *testing.T) pawl.ReceiptStatus {
	t.Helper()
	select {
	case <-c.done:
	case <-time.After(20 * time.Second):
		t.Fatal("a call of a batch did not end")
	}
	if c.err != nil {
		t.Fatal(c.err)
	}
	return c.receipt.Status
}

// TestGroupReceipts stores a batch of which some IDs and keys are there.
func TestGroupReceipts(t *testing.T) {
	s := groupStore(t)
	old, oldKey := groupRequest(""), groupRequest("old")
	for _, r := range []*pawl.Request{old, oldKey} {
		if _, err := s.Enqueue(t.Context(), []*pawl.Request{r}); err != nil {
			t.Fatal(err)
		}
	}
	again, replacing := groupRequest("old"), groupRequest("old")
	replacing.OnDuplicate = pawl.Replace
	plain := batchOf(t.Context(), groupRequest(""), old, groupRequest(""))
	s.group.plain.store(plain)
	keyed := batchOf(t.Context(), groupRequest("a"), groupRequest("a"), groupRequest("b"), again, replacing, oldKey)
	s.group.keyed.store(keyed)
	want := []pawl.ReceiptStatus{
		pawl.Stored, pawl.Exists, pawl.Stored,
		pawl.Stored, pawl.Duplicate, pawl.Stored, pawl.Duplicate, pawl.Replaced, pawl.Exists,
	}
	for i, c := range append(plain, keyed...) {
		if got := c.status(t); got != want[i] {
			t.Errorf("call %d: %v, want %v", i, got, want[i])
		}
	}
	if keyed[1].receipt.ID != keyed[0].reqs[0].ID || keyed[3].receipt.ID != oldKey.ID || keyed[4].receipt.ID != oldKey.ID {
		t.Error("a receipt names another than the holder of the key")
	}
}

// TestGroupHeld: an ID or key of an open transaction holds up only those that
// want it, and those leave when their contexts end.
func TestGroupHeld(t *testing.T) {
	for _, key := range []string{"", "key"} {
		t.Run("key="+key, func(t *testing.T) {
			s := groupStore(t)
			tx, err := s.pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback(context.Background())
			held := groupRequest(key)
			if _, err := s.Tx(tx).Enqueue(t.Context(), []*pawl.Request{held}); err != nil {
				t.Fatal(err)
			}
			wanting := held
			keyOf := func(int) string { return "" }
			if key != "" {
				wanting = groupRequest(key)
				keyOf = func(i int) string { return fmt.Sprintf("k%d", i) }
			}
			l := &s.group.plain
			if key != "" {
				l = &s.group.keyed
			}
			var batch []*single
			for i := range 7 {
				batch = append(batch, batchOf(t.Context(), groupRequest(keyOf(i)))...)
			}
			short, cancel := context.WithCancel(t.Context())
			impatient, patient := batchOf(short, wanting)[0], batchOf(t.Context(), wanting)[0]
			l.store(append(batch, impatient))
			for _, c := range batch {
				if got := c.status(t); got != pawl.Stored {
					t.Errorf("beside one that is held: %v", got)
				}
			}
			cancel()
			<-impatient.done
			if !errors.Is(impatient.err, context.Canceled) {
				t.Errorf("a call whose context ended: %v, want Canceled", impatient.err)
			}
			l.store(batchOf(t.Context(), groupRequest(keyOf(8)), groupRequest(keyOf(9))))
			l.apart([]*single{patient})
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			want := map[bool]pawl.ReceiptStatus{true: pawl.Exists, false: pawl.Duplicate}[key == ""]
			if got := patient.status(t); got != want {
				t.Errorf("after the commit: %v, want %v", got, want)
			}
		})
	}
}

// TestGroupGuilty: what the server refuses fails alone.
func TestGroupGuilty(t *testing.T) {
	s := groupStore(t)
	sql := strings.ReplaceAll(`CREATE FUNCTION S.refuse() RETURNS trigger LANGUAGE plpgsql AS
			$$ BEGIN RAISE 'refused'; END $$;
		CREATE TRIGGER refuse BEFORE INSERT ON S.pawl_job FOR EACH ROW WHEN (NEW.kind = 'bad')
			EXECUTE FUNCTION S.refuse()`, "S.", s.o.Schema+".")
	if _, err := s.pool.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	for _, l := range []*lane{&s.group.plain, &s.group.keyed} {
		var batch []*single
		for i := range 20 {
			r := groupRequest("")
			if l.sorted {
				r.UniqueKey = fmt.Sprint(i)
			}
			if i == 7 || i == 19 {
				r.Kind = "bad"
			}
			batch = append(batch, batchOf(t.Context(), r)...)
		}
		l.store(batch)
		for _, c := range batch {
			if c.reqs[0].Kind == "k" {
				c.status(t)
			} else if <-c.done; code(c.err) != "P0001" {
				t.Errorf("what is refused: %v", c.err)
			}
		}
	}
}

// TestGroupServerGone: a batch of which nobody knows what became of it fails as
// a whole, and is not tried again.
func TestGroupServerGone(t *testing.T) {
	for err, want := range map[error]bool{
		errors.New("connection reset"):                  false,
		&stateError{"57P01"}:                            false,
		&stateError{codeReadOnly}:                       false,
		&stateError{"55P03"}:                            true,
		fmt.Errorf("wrapped: %w", &stateError{"22021"}): true,
	} {
		if refused(err) != want {
			t.Errorf("refused(%v) is %v", err, !want)
		}
	}
}

// TestGroupPoolUsedUp: calls that share an insert wait for a connection as long as
// their callers do.
func TestGroupPoolUsedUp(t *testing.T) {
	s := groupStore(t)
	s.group.timeout = 3 * time.Second
	conns := s.pool.AcquireAllIdle(t.Context())
	for len(conns) < int(s.pool.Config().MaxConns) {
		conn, err := s.pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	free := batchOf(t.Context(), groupRequest(""), groupRequest(""))
	held := batchOf(t.Context(), groupRequest("a"), groupRequest("b"))
	go s.group.plain.store(free)
	go s.group.keyed.storeHeld(held)
	late := time.After(s.group.timeout + 100*time.Millisecond)
	select {
	case <-free[0].done:
		t.Errorf("ended without a connection: %v", free[0].err)
	case <-held[0].done:
		t.Errorf("ended without a connection: %v", held[0].err)
	case <-late:
	}
	for _, conn := range conns {
		conn.Release()
	}
	for _, c := range append(free, held...) {
		if got := c.status(t); got != pawl.Stored {
			t.Errorf("receipt %v, want stored", got)
		}
	}
}

type stateError struct{ state string }

func (e *stateError) Error() string    { return e.state }
func (e *stateError) SQLState() string { return e.state }

// TestGroupUnderLoad has many callers, some of whom want the same, while the
// Store is closed. Those who were told ErrClosed have stored nothing, those who
// were told of no error have.
func TestGroupUnderLoad(t *testing.T) {
	s := groupStore(t)
	const callers, each = 32, 40
	var (
		wg     sync.WaitGroup
		mu     sync.Mutex
		stored = map[pawl.ID]bool{}
		keys   = map[string]int{}
		count  atomic.Int64
	)
	for caller := range callers {
		wg.Go(func() {
			for i := range each {
				r := groupRequest("")
				if caller%2 == 0 {
					r.UniqueKey = fmt.Sprintf("key-%d", i)
				}
				got, err := s.Enqueue(context.Background(), []*pawl.Request{r})
				if err != nil && !errors.Is(err, pawl.ErrClosed) {
					t.Error(err)
				}
				mu.Lock()
				stored[r.ID] = err == nil && got[0].Status == pawl.Stored
				if stored[r.ID] && r.UniqueKey != "" {
					keys[r.UniqueKey]++
				}
				mu.Unlock()
				if count.Add(1) == callers*each*3/4 {
					if err := s.Close(); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	for key, n := range keys {
		if n > 1 {
			t.Errorf("%s was stored %d times", key, n)
		}
	}
	after, err := New(t.Context(), s.pool, s.o)
	if err != nil {
		t.Fatal(err)
	}
	defer after.Close()
	for id, want := range stored {
		jobs, err := after.Get(t.Context(), "q", id)
		if err != nil {
			t.Fatal(err)
		}
		if (jobs[0] != nil) != want {
			t.Errorf("job %v is there: %v, receipt says: %v", id, jobs[0] != nil, want)
		}
	}
}

// BenchmarkGroup compares callers that share inserts with such that do not.
func BenchmarkGroup(b *testing.B) {
	server := testserver.NewPostgres(b, &testserver.PostgresOptions{
		Fsync: true, MaxConnections: 100, Settings: map[string]string{"shared_buffers": "1GB"},
	})
	pool, err := pgxpool.New(b.Context(), server.DSN("")+" pool_max_conns=64")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	for _, callers := range []int{1, 2, 16, 64, 256} {
		for _, keyed := range []bool{false, true} {
			for _, size := range []int{1, defaultBatchJobs} {
				b.Run(fmt.Sprintf("callers=%d/keyed=%v/batch=%d", callers, keyed, size), func(b *testing.B) {
					benchGroup(b, pool, callers, keyed, size)
				})
			}
		}
	}
}

func benchGroup(b *testing.B, pool *pgxpool.Pool, callers int, keyed bool, size int) {
	s, err := New(b.Context(), pool, &Options{BatchJobs: size})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	b.ResetTimer()
	for range callers {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				r := groupRequest("")
				if keyed {
					r.UniqueKey = r.ID.String()
				}
				if _, err := s.Enqueue(context.Background(), []*pawl.Request{r}); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
}
