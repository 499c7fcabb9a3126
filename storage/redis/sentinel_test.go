package redis_test

import (
	"testing"

	"github.com/pawlq/pawl/internal/testserver"
)

// TestPoolSentinel takes the master from a pool, by a crash and by a machine that
// hangs. Sentinels make the replica the master, the client finds it, and the pool goes
// on by itself with all that the replica had.
func TestPoolSentinel(t *testing.T) {
	for name, trouble := range map[string]struct {
		begin, end func(*testserver.RedisServer) error
	}{
		"crash": {func(s *testserver.RedisServer) error { s.Kill(); return nil }, (*testserver.RedisServer).Start},
		"hang":  {(*testserver.RedisServer).Pause, (*testserver.RedisServer).Resume},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testserver.NewRedisSentinel(t, nil)
			one := server.Client(nil)
			t.Cleanup(func() {
				if err := one.Close(); err != nil {
					t.Error(err)
				}
			})
			c := startCrew(t, open(t, one, nil))
			c.work(100)
			master, err := server.Master(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			kept := c.known()
			replicated(t, master, "mark")
			if err := trouble.begin(master); err != nil {
				t.Fatal(err)
			}
			c.work(100)
			if now, err := server.Master(t.Context()); err != nil || now == master {
				t.Errorf("the master is as before, or not known: %v", err)
			}
			if err := trouble.end(master); err != nil {
				t.Fatal(err)
			}
			if err := server.Ready(); err != nil {
				t.Fatal(err)
			}
			c.work(100)
			c.rest()
			c.finish(kept)
			t.Logf("%d of %d accepted jobs were not there", c.missing(), len(c.known()))
		})
	}
}
