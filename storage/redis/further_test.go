package redis_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	client "github.com/redis/go-redis/v9"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/redis"
)

// fault is a hook of a client that may refuse scripts.
type fault struct {
	refuse func(args []any) error // nil: none
}

func (*fault) DialHook(next client.DialHook) client.DialHook { return next }

func (*fault) ProcessPipelineHook(next client.ProcessPipelineHook) client.ProcessPipelineHook {
	return next
}

func (f *fault) ProcessHook(next client.ProcessHook) client.ProcessHook {
	return func(ctx context.Context, cmd client.Cmder) error {
		if f.refuse != nil && strings.HasPrefix(cmd.Name(), "eval") {
			if err := f.refuse(cmd.Args()); err != nil {
				cmd.SetErr(err)
				return err
			}
		}
		return next(ctx, cmd)
	}
}

var errFault = errors.New("fault")

// TestFurtherCallFails lets the call fail that a claim makes for more, in the place of a job that
// was damaged. The jobs that came are returned.
func TestFurtherCallFails(t *testing.T) {
	for _, ends := range []bool{false, true} {
		t.Run(fmt.Sprintf("context ends=%t", ends), func(t *testing.T) {
			f := &fault{}
			c := testserver.Redis(t).Client(&client.Options{})
			t.Cleanup(func() { _ = c.Close() })
			c.AddHook(f)
			v := newVictim(t, c)
			reqs := requests(4, pawl.Request{})
			mustEnqueue(t, v.Store, reqs...)
			mustSettle(t, v.Store, acks(mustClaim(t, v.Store, 1))) // the server knows the script now
			v.damageKind(reqs[2].ID)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			calls := 0
			f.refuse = func([]any) error {
				if calls++; calls != 2 {
					return nil
				}
				if ends {
					cancel()
				}
				return errFault
			}
			got, err := v.Claim(ctx, asking(3))
			if err != nil || len(got.Jobs) != 2 || calls < 2 {
				t.Fatalf("claimed %d jobs in %d calls: %v", len(got.Jobs), calls, err)
			}
			mustSettle(t, v.Store, acks(got.Jobs))
		})
	}
}

// TestSweepsGoOn ends each sweep of a cluster after a few queues, as one does that waits for nodes
// that hang. The next ones go on where it has stopped, so that all queues have their turn.
func TestSweepsGoOn(t *testing.T) {
	const queues, each = 9, 3
	f := &fault{}
	cluster, _ := storageCluster(t)
	c := client.NewClusterClient(cluster.Options())
	t.Cleanup(func() { _ = c.Close() })
	c.AddHook(f)
	s := open(t, c, &redis.Options{Prefix: fmt.Sprint("test", installations.Add(1))})
	for i := range queues {
		q := request(pawl.Request{})
		q.Queue = fmt.Sprint("queue", i)
		mustEnqueue(t, s, q)
	}
	if _, err := s.Sweep(t.Context(), pawl.SweepSpec{Limit: 100}); err != nil { // the nodes know the script now
		t.Fatal(err)
	}
	swept := make(map[string]int)
	for range queues / each {
		ctx, cancel := context.WithCancel(t.Context())
		n := 0
		f.refuse = func(args []any) error {
			swept[fmt.Sprint(args[3])]++
			if n++; n < each {
				return nil
			}
			cancel()
			return context.Canceled
		}
		if _, err := s.Sweep(ctx, pawl.SweepSpec{Limit: 100}); !errors.Is(err, context.Canceled) {
			t.Errorf("sweep ended with %v", err)
		}
		cancel()
	}
	if len(swept) != queues {
		t.Errorf("%d queues were swept: %v", len(swept), swept)
	}
	f.refuse = nil
}
