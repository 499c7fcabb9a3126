package redis_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	client "github.com/redis/go-redis/v9"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/redis"
)

// crashes is how often the server is killed.
const crashes = 4

// TestServerKilled kills the server under load: what was accepted is kept, and
// each job is acked once. The Store carries on by itself.
func TestServerKilled(t *testing.T) {
	server := testserver.NewRedis(t, &testserver.RedisOptions{Fsync: "always"})
	c := connect(t, server)
	l := startLoad(t, open(t, c, nil))
	for range crashes {
		l.await(300)
		server.Kill()
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
	}
	l.await(300)
	l.finish(open(t, c, &redis.Options{Clock: ahead}))
}

// TestScriptsFlushed empties the server's cache of scripts all the time.
func TestScriptsFlushed(t *testing.T) {
	c := connect(t, testserver.NewRedis(t, nil))
	l := startLoad(t, open(t, c, nil))
	flushScripts(t, c)
	l.await(2000)
	l.finish(open(t, c, &redis.Options{Clock: ahead}))
}

// flushScripts empties the server's cache of scripts until the test ends.
func flushScripts(t *testing.T, c *client.Client) {
	t.Helper()
	allTheTime(t, func(ctx context.Context) error { return c.ScriptFlush(ctx).Err() })
}

// TestConnectionsKilled has the server end all connections all the time.
func TestConnectionsKilled(t *testing.T) {
	server := testserver.NewRedis(t, nil)
	s, root := open(t, connect(t, server), nil), connect(t, server)
	l := startLoad(t, s)
	stop := allTheTime(t, func(ctx context.Context) error {
		return root.ClientKillByFilter(ctx, "TYPE", "normal", "SKIPME", "yes").Err()
	})
	l.await(1000)
	l.stop()
	stop()
	l.finish(open(t, root, &redis.Options{Clock: ahead}))
	wantClaimedOnce(t, s, l)
}

// allTheTime does something every 5 ms until it is stopped, at the latest when the test ends.
func allTheTime(t *testing.T, do func(ctx context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() {
		for ctx.Err() == nil {
			if err := do(context.WithoutCancel(ctx)); err != nil {
				done <- err
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Millisecond):
			}
		}
		done <- nil
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// A cutter makes connections that it cuts at every nth reply, or request.
type cutter struct {
	how   cut
	n     atomic.Int64
	armed atomic.Bool
	cuts  atomic.Int64
}

const cutEvery = 10

// A cut is where a connection ends.
type cut int

const (
	replyLost cut = iota
	replyTorn
	requestLost
	requestTorn
)

type cutConn struct {
	net.Conn
	c *cutter
}

func (c *cutter) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	return &cutConn{conn, c}, err
}

// due reports whether this one of the replies, or requests, is cut.
func (c *cutter) due() bool {
	if !c.armed.Load() || c.n.Add(1)%cutEvery != 0 {
		return false
	}
	c.cuts.Add(1)
	return true
}

func (c *cutConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil || c.c.how > replyTorn || !c.c.due() {
		return n, err
	}
	_ = c.Conn.Close()
	if c.c.how == replyTorn {
		return n / 2, nil
	}
	return 0, net.ErrClosed
}

func (c *cutConn) Write(p []byte) (int, error) {
	if c.c.how < requestLost || !c.c.due() {
		return c.Conn.Write(p)
	}
	if c.c.how == requestTorn {
		_, _ = c.Conn.Write(p[:len(p)/2])
	}
	_ = c.Conn.Close()
	return 0, net.ErrClosed
}

// TestCuts cuts the connection at one reply or request in ten. The client library must not
// repeat what may have had its effect: no job is claimed but once, and none is stored twice.
func TestCuts(t *testing.T) {
	for name, how := range map[string]cut{
		"reply lost": replyLost, "reply torn": replyTorn, "request lost": requestLost, "request torn": requestTorn,
	} {
		t.Run(name, func(t *testing.T) { cutConnections(t, how) })
	}
}

func cutConnections(t *testing.T, how cut) {
	server := testserver.NewRedis(t, nil)
	cut := &cutter{how: how}
	c := client.NewClient(&client.Options{Network: "unix", Addr: server.Addr(), Dialer: cut.dial, MaxRetries: 3})
	t.Cleanup(func() { c.Close() })
	s := open(t, c, nil)
	cut.armed.Store(true)
	l := startLoad(t, s)
	l.await(600)
	l.stop()
	cut.armed.Store(false)
	l.finish(open(t, connect(t, server), &redis.Options{Clock: ahead}))
	if cut.cuts.Load() < 20 {
		t.Errorf("only %d connections were cut", cut.cuts.Load())
	}
	wantClaimedOnce(t, s, l)
}

// wantClaimedOnce looks at jobs whose load went through lost replies.
func wantClaimedOnce(t *testing.T, s *redis.Store, l *load) {
	t.Helper()
	rescues := 0
	spec := pawl.ListSpec{Limit: 1000, Filter: pawl.Filter{Queue: "default"}}
	for more := true; more; more = spec.Cursor != "" {
		page, err := s.List(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range page.Jobs {
			if !l.accepted[j.ID] && l.acked[j.ID] == 0 {
				continue // given up when the load ended
			}
			if j.Attempt != 1 || j.Counts.Retries > 0 {
				t.Errorf("job %v: attempt %d, %+v", j.ID, j.Attempt, j.Counts)
			}
			rescues += j.Counts.Rescues
		}
		spec.Cursor = page.Next
	}
	if most := workers * perClaim; rescues > most { // of claims whose worker gave up when the load ended
		t.Errorf("%d jobs were claimed and not returned, want at most %d", rescues, most)
	}
}

// TestMemoryFull fills the server's memory: enqueues fail and store nothing, all
// else goes on, and enqueues do again when there is room.
func TestMemoryFull(t *testing.T) {
	c := connect(t, testserver.NewRedis(t, &testserver.RedisOptions{Settings: map[string]string{"maxmemory": "6mb"}}))
	s := open(t, c, nil)
	var stored []pawl.ID
	var refused *pawl.Request
	for refused == nil {
		q := request(pawl.Request{Payload: make([]byte, 10_000), Retention: pawl.DeleteNow})
		if _, err := s.Enqueue(t.Context(), []*pawl.Request{q}); err != nil {
			if !strings.Contains(err.Error(), "OOM") {
				t.Fatal(err)
			}
			refused = q
			break
		}
		stored = append(stored, q.ID)
	}
	// Whoever starts now can help.
	s = open(t, c, nil)
	for _, paused := range []bool{true, false} {
		if err := s.Configure(t.Context(), "default", pawl.QueueSettings{Paused: &paused}); err != nil {
			t.Fatal(err)
		}
	}
	if jobs, err := s.Get(t.Context(), "default", refused.ID); err != nil || jobs[0] != nil {
		t.Fatalf("a refused job is there: %v, %v", jobs[0], err)
	}
	acked := 0
	for acked < len(stored) {
		got, err := s.Claim(t.Context(), asking(50))
		if err != nil || len(got.Jobs) == 0 {
			t.Fatalf("claimed %d jobs: %v", len(got.Jobs), err)
		}
		var renewals []pawl.Renewal
		var outcomes []pawl.Outcome
		for _, j := range got.Jobs {
			renewals = append(renewals, pawl.Renewal{Ref: j.Ref, Lease: time.Minute})
			outcomes = append(outcomes, pawl.Outcome{Ref: j.Ref, Verb: pawl.Ack})
		}
		if lost, err := s.Extend(t.Context(), renewals); err != nil || len(lost) > 0 {
			t.Fatal(lost, err)
		}
		if _, err := s.Sweep(t.Context(), pawl.SweepSpec{Limit: 100}); err != nil {
			t.Fatal(err)
		}
		if lost, err := s.Settle(t.Context(), outcomes); err != nil || len(lost) > 0 {
			t.Fatal(lost, err)
		}
		acked += len(outcomes)
	}
	if _, err := s.Enqueue(t.Context(), []*pawl.Request{refused}); err != nil {
		t.Errorf("with room again: %v", err)
	}
}

// TestFailover kills a master under load. The Store finds the replica by itself.
// What was accepted may be lost, as the package says, but nothing is torn: each
// job that is there can be worked off.
func TestFailover(t *testing.T) {
	cluster := testserver.NewRedisCluster(t, nil)
	c := cluster.Client(nil)
	t.Cleanup(func() { c.Close() })
	s := open(t, c, nil)
	l := startLoad(t, s)
	l.await(300)
	master, err := cluster.MasterOf(t.Context(), "pawl:{default}:i")
	if err != nil {
		t.Fatal(err)
	}
	master.Kill()
	l.await(300)
	if err := master.Start(); err != nil {
		t.Fatal(err)
	}
	if err := cluster.Ready(); err != nil {
		t.Fatal(err)
	}
	l.await(300)
	l.stop()
	l.drain(open(t, c, &redis.Options{Clock: ahead}))
	if st := l.count(); st.Ready+st.Scheduled+st.Running+st.Buried > 0 || st.Completed == 0 {
		t.Errorf("numbers at the end: %+v", st)
	}
}

// TestReplicaRefuses makes the server a replica: calls fail and change nothing,
// and succeed when it is a master again.
func TestReplicaRefuses(t *testing.T) {
	c := connect(t, testserver.NewRedis(t, nil))
	s := open(t, c, nil)
	if _, err := s.Enqueue(t.Context(), []*pawl.Request{request(pawl.Request{})}); err != nil {
		t.Fatal(err)
	}
	follow := func(of ...any) {
		t.Helper()
		if err := c.Do(t.Context(), append([]any{"replicaof"}, of...)...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	follow("127.0.0.1", "1")
	if _, err := s.Claim(t.Context(), asking(1)); err == nil || !strings.Contains(err.Error(), "READONLY") {
		t.Errorf("claim: %v", err)
	}
	follow("no", "one")
	if got, err := s.Claim(t.Context(), asking(1)); err != nil || len(got.Jobs) != 1 || got.Jobs[0].Attempt != 1 {
		t.Errorf("claim: %v, %v", got.Jobs, err)
	}
}

// TestErrorsReachable finds what the driver said behind an error.
func TestErrorsReachable(t *testing.T) {
	c := connect(t, testserver.Redis(t))
	s := open(t, c, &redis.Options{Prefix: fmt.Sprint("test", installations.Add(1))})
	if err := c.Set(t.Context(), s.Prefix()+":{default}:b", "not a hash", 0).Err(); err != nil {
		t.Fatal(err)
	}
	_, err := s.Enqueue(t.Context(), []*pawl.Request{request(pawl.Request{})})
	var answer client.Error
	if !errors.As(err, &answer) || !strings.Contains(err.Error(), "WRONGTYPE") {
		t.Errorf("error %v", err)
	}
	s.Close()
	if _, err := s.Count(t.Context()); !errors.Is(err, pawl.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}
