package postgres_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/postgres"
	"github.com/pawlq/pawl/storage/storagetest"
)

// TestClaimAfterManyBecameDue: the most urgent of more jobs than one transaction
// promotes comes first, though it was the last to become due.
func TestClaimAfterManyBecameDue(t *testing.T) {
	clock := storagetest.NewClock()
	s := fresh(t, postgres.Options{Clock: clock.Now})
	const late = 2*pawl.MaxStep + 10
	var reqs []*pawl.Request
	for range late {
		reqs = append(reqs, request(pawl.Request{Delay: time.Second}), request(pawl.Request{Queue: "other", Delay: time.Second}))
	}
	urgent := request(pawl.Request{Delay: 2 * time.Second, Priority: -1})
	reqs = append(reqs, urgent, request(pawl.Request{Queue: "other", Delay: 2 * time.Second, Priority: -1}))
	if _, err := s.Enqueue(t.Context(), reqs); err != nil {
		t.Fatal(err)
	}
	clock.Advance(time.Minute)
	if got := claim(t, s, 1)[0].ID; got != urgent.ID {
		t.Errorf("claimed %v first, want the urgent job %v", got, urgent.ID)
	}
	both := spec(20)
	both.Queues = []pawl.QueueAsk{{Queue: "default", Max: 2}, {Queue: "other", Max: 20}}
	c, err := s.Claim(t.Context(), both)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]int{}
	for _, j := range c.Jobs {
		got[j.Queue] = append(got[j.Queue], j.Priority)
	}
	want := map[string][]int{"default": make([]int, 2), "other": append([]int{-1}, make([]int, 17)...)}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("priorities by queue (-want +got):\n%s", d)
	}
}

// TestClaimAfterRowsMoved: the rows of the claimed jobs are elsewhere than the claim
// has noted, as when VACUUM FULL comes between.
func TestClaimAfterRowsMoved(t *testing.T) {
	s := fresh(t, postgres.Options{})
	inSchema(t, s, `CREATE FUNCTION moved() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN NEW.tids = ARRAY(SELECT '(999999,1)'::tid FROM unnest(NEW.tids)); RETURN NEW; END $$;
		CREATE TRIGGER moved BEFORE INSERT ON pawl_claim FOR EACH ROW EXECUTE FUNCTION moved()`)
	var want []pawl.ID
	for range 3 {
		want = append(want, enqueue(t, s, pawl.Request{Payload: []byte("x")}).ID)
	}
	jobs := claim(t, s, 3)
	for i, j := range jobs {
		if j.ID != want[i] || string(j.Payload) != "x" {
			t.Errorf("claimed %v with %q, want %v", j.ID, j.Payload, want[i])
		}
		settle(t, s, pawl.Outcome{Ref: j.Ref, Verb: pawl.Ack})
	}
}
