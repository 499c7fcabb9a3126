package redis_test

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	client "github.com/redis/go-redis/v9"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/redis"
)

// BenchmarkClaimShards claims one job from a queue of 8 shards, of which one has jobs,
// or none. A server that is far takes a millisecond to answer.
func BenchmarkClaimShards(b *testing.B) {
	server, cluster := testserver.Redis(b), testserver.NewRedisCluster(b, &testserver.RedisOptions{Fsync: "off"})
	for name, c := range map[string]client.UniversalClient{
		"server": server.Client(nil), "cluster": cluster.Client(nil),
		"far cluster": cluster.Client(&client.ClusterOptions{Dialer: dialFar}),
	} {
		b.Cleanup(func() { _ = c.Close() })
		for _, jobs := range []bool{true, false} {
			b.Run(fmt.Sprintf("%s/jobs=%t", name, jobs), func(b *testing.B) { claimShards(b, c, jobs) })
		}
	}
}

// A farConn answers as if it were far.
type farConn struct {
	net.Conn
	sent time.Time
}

func dialFar(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	return &farConn{Conn: conn}, err
}

func (c *farConn) Write(p []byte) (int, error) {
	c.sent = time.Now()
	return c.Conn.Write(p)
}

func (c *farConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	time.Sleep(time.Until(c.sent.Add(time.Millisecond)))
	return n, err
}

func claimShards(b *testing.B, c client.UniversalClient, jobs bool) {
	const shards = 8
	s := open(b, c, &redis.Options{
		Prefix: fmt.Sprint("test", installations.Add(1)), Shards: map[string]int{"default": shards},
	})
	s.Place(func(string, int) int { return 5 })
	want := 0
	if jobs {
		want = 1
	}
	for b.Loop() {
		if jobs {
			b.StopTimer()
			if _, err := s.Enqueue(b.Context(), requests(1, pawl.Request{Retention: pawl.DeleteNow})); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
		got, err := s.Claim(b.Context(), asking(1))
		if err != nil || len(got.Jobs) != want {
			b.Fatalf("claimed %d jobs: %v", len(got.Jobs), err)
		}
		if jobs {
			b.StopTimer()
			if _, err := s.Settle(b.Context(), acks(got.Jobs)); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	}
}
