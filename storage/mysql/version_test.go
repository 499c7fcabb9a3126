package mysql

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pawlq/pawl"
)

// A claim does not take what has been written since it was read, also if it is
// ready again and nobody has claimed it: its handler would get what was there
// before.
func TestClaimOfRewrittenJob(t *testing.T) {
	db := ownDB(t)
	s, err := New(t.Context(), db, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	change := func(verb pawl.ChangeVerb, c pawl.Change) func(id pawl.ID) error {
		return func(id pawl.ID) error {
			c.Verb, c.IDs = verb, []pawl.ID{id}
			_, err := s.Change(t.Context(), c)
			return err
		}
	}
	request := func(id pawl.ID, payload string) *pawl.Request {
		return &pawl.Request{
			ID: id, Queue: "q", Kind: "k", Payload: []byte(payload), MaxAttempts: 3, MaxRescues: 3, Retention: time.Hour,
			UniqueKey: "key", OnDuplicate: pawl.Replace, MaxDepth: pawl.Unlimited,
		}
	}
	for name, rewrite := range map[string]func(id pawl.ID) error{
		"nothing": func(pawl.ID) error { return nil },
		"edit":    change(pawl.Edit, pawl.Change{Edit: pawl.EditFields{Payload: []byte("new")}}),
		"replace": func(pawl.ID) error {
			_, err := s.Enqueue(t.Context(), []*pawl.Request{request(pawl.ID(uuid.Must(uuid.NewV7())), "new")})
			return err
		},
		"reschedule": change(pawl.Reschedule, pawl.Change{}),
		"cancel and kick": func(id pawl.ID) error {
			if err := change(pawl.Cancel, pawl.Change{})(id); err != nil {
				return err
			}
			return change(pawl.Kick, pawl.Change{})(id)
		},
	} {
		id := pawl.ID(uuid.Must(uuid.NewV7()))
		if _, err := s.Enqueue(t.Context(), []*pawl.Request{request(id, "old")}); err != nil {
			t.Fatal(err)
		}
		spec := pawl.ClaimSpec{Queues: []pawl.QueueAsk{{Queue: "q", Max: 1}}, Max: 1, Lease: time.Minute, Worker: "w", Token: -1 << 63}
		var taken []*record
		err := s.inTx(t.Context(), func(b *batch) error {
			b.fast = true
			if _, err := b.look(spec.Queues); err != nil {
				return err
			}
			found, err := b.candidates("q", 1, 0)
			if err != nil || len(found) != 1 {
				t.Fatalf("%s: found %d, error %v", name, len(found), err)
			}
			if err := rewrite(id); err != nil {
				return err
			}
			taken, err = b.takeUnchanged(found, spec)
			return err
		})
		if err != nil || (len(taken) == 1) != (name == "nothing") {
			t.Errorf("%s: taken %d, error %v", name, len(taken), err)
		}
		if name != "nothing" { // a claim that reads it now takes it
			c, err := s.Claim(t.Context(), spec)
			if err != nil || len(c.Jobs) != 1 || c.Jobs[0].ID != id {
				t.Errorf("%s: then claimed %v, error %v", name, c.Jobs, err)
			}
		}
		if err := change(pawl.Delete, pawl.Change{})(id); err != nil {
			t.Fatal(err)
		}
	}
}
