package task_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/task"
)

// Log is args that compress well.
type Log struct{ Lines []string }

func (Log) Kind() string      { return "log" }
func (Log) Codec() task.Codec { return task.Gzip{MaxSize: 1 << 20} }

func ExampleGzip() {
	r := task.New(Log{slices.Repeat([]string{"all is well"}, 1000)})
	job, err := task.Decode[Log](&pawl.Job{Payload: r.Payload})
	fmt.Println(len(r.Payload) < 200, len(job.Args.Lines), err)
	// Output: true 1000 <nil>
}

// cardKeys is made when the program starts, from secrets that are kept
// elsewhere. The first key encrypts, all decrypt.
var cardKeys *task.Keyring

// Charge is args that only those with the keys can read.
type Charge struct{ Card string }

func (Charge) Kind() string      { return "charge" }
func (Charge) Codec() task.Codec { return task.Encrypted{Keys: cardKeys} }

func ExampleEncrypted() {
	var err error
	cardKeys, err = task.NewKeyring(
		task.Key{ID: "2026", Secret: []byte("32 bytes that are really random.")},
		task.Key{ID: "2025", Secret: []byte("32 others, of jobs still waiting")},
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	r := task.New(Charge{"4111 1111"})
	fmt.Println(strings.Contains(string(r.Payload), "4111"))

	tasks := task.NewMux()
	task.Register(tasks, func(ctx context.Context, job *task.Job[Charge]) error {
		return fmt.Errorf("card %s is refused", job.Args.Card)
	})
	tasks.Use(cardKeys.SealErrors)
	job := &pawl.Job{Kind: r.Kind, Payload: r.Payload}
	_, err = tasks.Kinds()[0].Run(context.Background(), job) // what a worker does
	fmt.Println(err.Error()[:12])
	fmt.Println(cardKeys.OpenError(job.ID, err.Error()))
	// Output:
	// false
	// sealed:2026:
	// card 4111 1111 is refused <nil>
}

// presentKeys is replaced while the program runs.
var presentKeys atomic.Pointer[task.Keyring]

// Refund is encrypted with the first of the keys of the moment, since its codec is
// asked for at each call.
type Refund struct{ Card string }

func (Refund) Kind() string      { return "refund" }
func (Refund) Codec() task.Codec { return task.Encrypted{Keys: presentKeys.Load()} }

// sealErrors is SealErrors of the keys of the moment.
func sealErrors(next task.Handler) task.Handler {
	return func(ctx context.Context, job *pawl.Job) ([]byte, error) {
		return presentKeys.Load().SealErrors(next)(ctx, job)
	}
}

// Keys are rotated in a running process.
func ExampleKeyring() {
	old := task.Key{ID: "2025", Secret: []byte("32 bytes that are really random.")}
	next := task.Key{ID: "2026", Secret: []byte("32 others that are so as well...")}
	load := func(keys ...task.Key) { // from where secrets are kept, at a signal or now and then
		ring, err := task.NewKeyring(keys...)
		if err != nil {
			fmt.Println(err) // and the present ones stay
			return
		}
		presentKeys.Store(ring)
	}
	load(old)
	tasks := task.NewMux()
	task.Register(tasks, func(ctx context.Context, job *task.Job[Refund]) error {
		return fmt.Errorf("card %s is refused", job.Args.Card)
	})
	tasks.Use(sealErrors)
	run := tasks.Kinds()[0].Run // what a worker does

	waiting := task.New(Refund{"4111 1111"})
	load(old, next) // in all processes, and only then
	load(next, old)
	_, err := run(context.Background(), &pawl.Job{Kind: "refund", Payload: waiting.Payload})
	fmt.Println(err.Error()[:12])
	// Output: sealed:2026:
}

// At first invitations had a full name, then two; now they have an address too.
type (
	inviteV1 struct{ Name string }
	inviteV2 struct{ First, Last string }
	Invite   struct{ First, Last, Mail string }
)

func (Invite) Kind() string { return "invite" }

func (Invite) Codec() task.Codec {
	return task.Versioned{Upcasters: []task.Upcaster{
		task.Upcast(func(old inviteV1) (inviteV2, error) {
			first, last, _ := strings.Cut(old.Name, " ")
			return inviteV2{first, last}, nil
		}),
		task.Upcast(func(old inviteV2) (Invite, error) {
			return Invite{old.First, old.Last, strings.ToLower(old.First) + "@example.org"}, nil
		}),
	}}
}

func ExampleVersioned() {
	r := task.New(Invite{"Ada", "Lovelace", "ada@example.org"})
	fmt.Printf("%s\n", r.Payload)
	for _, waiting := range []string{`{"Name":"Alan Turing"}`, `v2 {"First":"Grace","Last":"Hopper"}`} {
		job, err := task.Decode[Invite](&pawl.Job{Payload: []byte(waiting)})
		fmt.Println(job.Args, err)
	}
	// Output:
	// v3 {"First":"Ada","Last":"Lovelace","Mail":"ada@example.org"}
	// {Alan Turing alan@example.org} <nil>
	// {Grace Hopper grace@example.org} <nil>
}
