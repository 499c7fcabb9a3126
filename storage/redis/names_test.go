package redis_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/redis"
)

// TestInstallationsApart uses installations in one database whose prefixes contain one
// another, or are names of keys: none sees what is in another.
func TestInstallationsApart(t *testing.T) {
	c := connect(t, testserver.NewRedis(t, nil))
	var all []*listener
	for _, prefix := range []string{"a", "a:", "a:a", "a:events", "a:queues", "a:meta"} {
		all = append(all, listen(t, open(t, c, &redis.Options{Prefix: prefix})))
	}
	for i, l := range all {
		for _, queue := range []string{"a", "events", "meta", "default"} {
			for range i + 1 {
				q := request(pawl.Request{})
				q.Queue = queue
				mustEnqueue(t, l.s, q)
			}
		}
		if e := l.next(); e.Queue != "a" {
			t.Errorf("the first event of %s is %+v", l.s.Prefix(), e)
		}
	}
	for i, l := range all {
		stats, err := l.s.Count(t.Context())
		if err != nil || len(stats) != 4 {
			t.Fatalf("%s has %+v, %v", l.s.Prefix(), stats, err)
		}
		for _, st := range stats {
			if st.Ready != int64(i+1) {
				t.Errorf("%s has %+v", l.s.Prefix(), st)
			}
		}
		if got := mustClaim(t, l.s, 10); len(got) != i+1 {
			t.Errorf("%s gave %d jobs", l.s.Prefix(), len(got))
		}
	}
}

// TestKeyTypes keeps all in hashes and sorted sets, of which no command that is used takes
// longer the more there is, as LREM does in a list.
func TestKeyTypes(t *testing.T) {
	c := connect(t, testserver.NewRedis(t, nil))
	everyCall(t, open(t, c, nil))
	keys, err := c.Keys(t.Context(), "*").Result()
	if err != nil || len(keys) < 10 {
		t.Fatal(keys, err)
	}
	for _, key := range keys {
		if is := c.Type(t.Context(), key).Val(); is != "hash" && is != "zset" {
			t.Errorf("%s is a %s", key, is)
		}
	}
}

// TestStrangeContents stores what could mean something to the server, Lua or a format.
func TestStrangeContents(t *testing.T) {
	s := open(t, connect(t, testserver.Redis(t)), &redis.Options{Prefix: fmt.Sprint("test", installations.Add(1))})
	for i, line := range []string{
		"}{", "{a}#0 b", "$5", "' .. error() --", "é\u2028", " ", strings.Repeat("{", pawl.MaxKeyLen), "\u00ff\U0010ffff",
	} {
		binary := []byte("\x00\xff\r\n\xc1\xd9" + line)
		q := request(pawl.Request{
			UniqueKey: line, UniqueMode: pawl.UniqueUntilWindow, UniqueWindow: time.Hour,
			Payload: binary, Meta: map[string]string{line: line, "": "}"},
		})
		mustEnqueue(t, s, q)
		spec := asking(1)
		spec.Worker = line
		got, err := s.Claim(t.Context(), spec)
		if err != nil || len(got.Jobs) != 1 {
			t.Fatalf("claimed %d jobs: %v", len(got.Jobs), err)
		}
		j := got.Jobs[0]
		if !bytes.Equal(j.Payload, binary) || j.UniqueKey != line || j.WorkerID != line || !cmp.Equal(j.Meta, q.Meta) {
			t.Errorf("of %q became %+v", line, j)
		}
		outcome := pawl.Outcome{Ref: j.Ref, Verb: pawl.Ack, Result: binary}
		if i%2 == 1 {
			outcome = pawl.Outcome{Ref: j.Ref, Verb: pawl.Bury, Error: string(binary)}
		}
		mustSettle(t, s, []pawl.Outcome{outcome})
		if r := mustEnqueue(t, s, request(pawl.Request{UniqueKey: line}))[0]; r.Status != pawl.Duplicate || r.ID != q.ID {
			t.Errorf("key %q: %+v", line, r)
		}
		jobs, err := s.Get(t.Context(), "", q.ID)
		if err != nil || !bytes.Equal(jobs[0].Result, outcome.Result) || i%2 == 1 && !strings.HasSuffix(jobs[0].Failures[0].Error, line) {
			t.Errorf("of %q became %+v, %v", line, jobs[0], err)
		}
	}
}
