package task_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/memory"
	"github.com/pawlq/pawl/task"
	"github.com/pawlq/pawl/worker"
)

// paymentKeys is a variable, as in a program.
var paymentKeys *task.Keyring

type payment struct{ Card string }

func (payment) Kind() string      { return "payment" }
func (payment) Codec() task.Codec { return task.Encrypted{Keys: paymentKeys, Codec: task.Gzip{}} }

type refund payment

func (refund) Kind() string      { return "refund" }
func (refund) Codec() task.Codec { return payment{}.Codec() }

// paid is a result.
type paid struct{ Number string }

func (paid) Codec() task.Codec { return task.Encrypted{Keys: paymentKeys, Context: "paid"} }

type other struct{ Number string }

func (other) Codec() task.Codec { return task.Encrypted{Keys: paymentKeys, Context: "other"} }

func open[A task.Args](payload []byte) (A, error) {
	job, err := task.Decode[A](&pawl.Job{Kind: "k", Payload: payload})
	return job.Args, err
}

func TestEncrypted(t *testing.T) {
	paymentKeys = keyring(t, newKey("2026"))
	secret := payment{Card: strings.Repeat("4111", 4)}
	r, again := task.New(secret), task.New(secret)
	if r.Err != nil || bytes.Contains(r.Payload, []byte("4111")) || bytes.Equal(r.Payload, again.Payload) {
		t.Fatalf("got %q and %q, %v", r.Payload, again.Payload, r.Err)
	}
	if got, err := open[payment](r.Payload); err != nil || got != secret {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := open[*payment](r.Payload); err != nil || *got != secret {
		t.Errorf("through a pointer: got %+v, %v", got, err)
	}
	if _, err := open[refund](r.Payload); err == nil {
		t.Error("a payload of another kind was decrypted")
	}
	if a, b := task.UniqueByArgs(secret), task.UniqueByArgs(secret); a != b {
		t.Errorf("equal args have keys %s and %s", a, b)
	}
	plain := task.UniqueByArgs(plainPayment(secret))
	if task.UniqueByArgs(secret) == plain || task.UniqueByArgs(secret) == task.UniqueByArgs(payment{Card: "5"}) {
		t.Error("the unique key tells the args, or is that of others")
	}
	for i := range r.Payload {
		changed := bytes.Clone(r.Payload)
		changed[i] ^= 1
		if _, err := open[payment](changed); err == nil {
			t.Fatalf("changed byte %d, and it was decrypted", i)
		}
		if _, err := open[payment](r.Payload[:i]); err == nil {
			t.Fatalf("cut to %d bytes, and it was decrypted", i)
		}
	}
}

type plainPayment payment

func (plainPayment) Kind() string { return "payment" }

func TestEncryptedResults(t *testing.T) {
	paymentKeys = keyring(t, newKey("2026"))
	data, err := task.EncodeResult(paid{"7"})
	if err != nil {
		t.Fatal(err)
	}
	job := &pawl.Job{State: pawl.Completed, Result: data}
	if got, err := task.Result[paid](job); err != nil || got.Number != "7" {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := task.Result[other](job); err == nil {
		t.Errorf("another context was taken: %+v", got)
	}
}

func TestEncryptedRefusesPlain(t *testing.T) {
	keys := keyring(t, newKey("2026"))
	var v payment
	plain := []byte(`{"Card":"1"}`)
	if err := (task.Encrypted{Keys: keys}).Decode(plain, &v); err == nil || v.Card != "" {
		t.Errorf("got %+v, %v", v, err)
	}
	if err := (task.Encrypted{Keys: keys, AllowPlain: true}).Decode(plain, &v); err != nil || v.Card != "1" {
		t.Errorf("got %+v, %v", v, err)
	}
	if err := (task.Encrypted{Keys: keys}).Decode([]byte("\x00pe1\x01\nxxx"), &v); err == nil {
		t.Error("a key with a strange ID was found")
	}
}

// longID names a key by all the bytes that its length can count.
var longID = "\x00pe1\xff" + strings.Repeat("x", 300)

func TestEncryptedRefusesLongKeyID(t *testing.T) {
	paymentKeys = keyring(t, newKey("2026"))
	if _, err := open[payment]([]byte(longID)); err == nil || !strings.Contains(err.Error(), "changed since") {
		t.Errorf("got %v", err)
	}
}

func TestEncryptedWithoutKeys(t *testing.T) {
	for _, none := range []*task.Keyring{nil, new(task.Keyring)} {
		paymentKeys = none
		encryptedWithoutKeys(t)
	}
	paymentKeys = keyring(t, newKey("2026"))
	task.Register(task.NewMux(), nothing[payment])
	if r := task.New(sealedUnfit{}); r.Err == nil {
		t.Error("the error of the wrapped codec is lost")
	}
	task.UniqueByArgs(sealedUnfit{})
}

func encryptedWithoutKeys(t *testing.T) {
	t.Helper()
	if r := task.New(payment{}); r.Err == nil || !strings.Contains(r.Err.Error(), "without Keys") {
		t.Errorf("got %v", r.Err)
	}
	if _, err := open[payment]([]byte(longID)); err == nil || !strings.Contains(err.Error(), "without Keys") {
		t.Errorf("got %v", err)
	}
	task.UniqueByArgs(payment{})
	expectPanic(t, "Encrypted without Keys", func() { task.Register(task.NewMux(), nothing[payment]) })
	expectPanic(t, "Encrypted without Keys", func() {
		task.RegisterResult(task.NewMux(), func(context.Context, *task.Job[welcome]) (paid, error) { return paid{}, nil })
	})
}

type sealedUnfit struct{ Func func() }

func (sealedUnfit) Kind() string      { return "sealed" }
func (sealedUnfit) Codec() task.Codec { return task.Encrypted{Keys: paymentKeys} }

func expectPanic(t *testing.T, want string, f func()) {
	t.Helper()
	defer func() {
		t.Helper()
		if s, _ := recover().(string); !strings.Contains(s, want) {
			t.Errorf("got panic %q, want %q", s, want)
		}
	}()
	f()
}

// TestMissingKeyWaits: a worker that lacks the key hands the job back, one that
// has it runs the job.
func TestMissingKeyWaits(t *testing.T) {
	before, after := newKey("before"), newKey("after")
	paymentKeys = keyring(t, after, before)
	q := pawl.New(memory.New(nil), nil)
	receipt, err := q.Enqueue(t.Context(), task.New(payment{"1"}))
	if err != nil {
		t.Fatal(err)
	}
	tasks := task.NewMux()
	task.Register(tasks, nothing[payment])
	for i, keys := range []*task.Keyring{keyring(t, before), paymentKeys} {
		want := []pawl.Verb{pawl.SnoozeFor, pawl.Ack}[i]
		paymentKeys = keys
		ran, err := worker.Drain(t.Context(), q, tasks, &worker.DrainOptions{Retries: true})
		if err != nil || len(ran) != 1 || ran[0].Verb != want {
			t.Fatalf("ran %+v, %v, want %v", ran, err, want)
		}
		if want == pawl.Ack {
			break
		}
		checkLacking(t, ran[0].Err, `encrypted with key "after", which the Keyring lacks`)
		if err := q.RunNow(t.Context(), receipt.Queue, receipt.ID); err != nil {
			t.Fatal(err)
		}
	}
}

// checkLacking looks for what tells the reader of a log what is wrong with a job
// that is handed back.
func checkLacking(t *testing.T, err error, want string) {
	t.Helper()
	var (
		decode  *task.DecodeError
		lacking interface{ Lacking() string } // what a pool looks for
	)
	if !errors.As(err, &decode) || !errors.As(err, &lacking) || lacking.Lacking() != want || err.Error() != decode.Error() ||
		!strings.HasSuffix(err.Error(), want) {
		t.Errorf("got %v, want a DecodeError: %s", err, want)
	}
}

// FuzzWrapped feeds arbitrary payloads to the codecs that wrap others.
func FuzzWrapped(f *testing.F) {
	paymentKeys = keyring(f, task.Key{ID: "k", Secret: make([]byte, 16)})
	for _, s := range []string{"", "{}", "v1 {}", "v2 {}", "v99 {}", "v3", "\x1f\x8b", "\x00pe1", "\x00pe1\xff", "\x00pe1\x01k", longID} {
		f.Add([]byte(s))
	}
	f.Add(task.New(payment{"1"}).Payload)
	f.Add(task.New(packed{strings.Repeat("x", 100)}).Payload)
	f.Fuzz(func(t *testing.T, payload []byte) {
		check(t, payload, func() error { _, err := open[payment](payload); return err })
		check(t, payload, func() error { _, err := open[packed](payload); return err })
		check(t, payload, func() error { _, err := open[person](payload); return err })
		if s, err := paymentKeys.OpenError(pawl.ID{}, string(payload)); err != nil && s != "" {
			t.Errorf("got %q and %v", s, err)
		}
	})
}

func check(t *testing.T, payload []byte, decode func() error) {
	t.Helper()
	before := bytes.Clone(payload)
	if err := decode(); err != nil && len(err.Error()) > 250 {
		t.Errorf("got %v", err)
	}
	if !bytes.Equal(before, payload) {
		t.Error("the payload was changed")
	}
}
