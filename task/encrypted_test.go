package task_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/memory"
	"github.com/pawlq/pawl/task"
	"github.com/pawlq/pawl/worker"
)

func newKey(id string) task.Key {
	secret := make([]byte, 32)
	rand.Read(secret)
	return task.Key{ID: id, Secret: secret}
}

func keyring(t testing.TB, keys ...task.Key) *task.Keyring {
	t.Helper()
	k, err := task.NewKeyring(keys...)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

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

func TestKeyRotation(t *testing.T) {
	first, second := newKey("first"), newKey("second")
	args := payment{Card: "1"}
	paymentKeys = keyring(t, first)
	old := task.New(args).Payload
	paymentKeys = keyring(t, second, first)
	current := task.New(args).Payload
	for _, payload := range [][]byte{old, current} {
		if got, err := open[payment](payload); err != nil || got != args {
			t.Errorf("both keys: got %+v, %v", got, err)
		}
	}
	paymentKeys = keyring(t, second)
	if _, err := open[payment](current); err != nil {
		t.Errorf("encrypted with the first key: %v", err)
	}
	if _, err := open[payment](old); err == nil || !strings.Contains(err.Error(), `encrypted with key "first", which the Keyring lacks`) {
		t.Errorf("got %v without the old key", err)
	}
	stranger := newKey("first")
	paymentKeys = keyring(t, stranger)
	if _, err := open[payment](old); err == nil || !strings.Contains(err.Error(), "changed since") {
		t.Errorf("got %v for another key of the same ID", err)
	}
}

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

func TestEncryptedWithoutKeys(t *testing.T) {
	paymentKeys = nil
	if r := task.New(payment{}); r.Err == nil || !strings.Contains(r.Err.Error(), "without Keys") {
		t.Errorf("got %v", r.Err)
	}
	if _, err := open[payment](nil); err == nil || !strings.Contains(err.Error(), "without Keys") {
		t.Errorf("got %v", err)
	}
	task.UniqueByArgs(payment{})
	expectPanic(t, "Encrypted without Keys", func() { task.Register(task.NewMux(), nothing[payment]) })
	expectPanic(t, "Encrypted without Keys", func() {
		task.RegisterResult(task.NewMux(), func(context.Context, *task.Job[welcome]) (paid, error) { return paid{}, nil })
	})
	paymentKeys = keyring(t, newKey("2026"))
	task.Register(task.NewMux(), nothing[payment])
	if r := task.New(sealedUnfit{}); r.Err == nil {
		t.Error("the error of the wrapped codec is lost")
	}
	task.UniqueByArgs(sealedUnfit{})
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

func TestNewKeyring(t *testing.T) {
	good := newKey("a:b")
	for name, keys := range map[string][]task.Key{
		"none":   nil,
		"no ID":  {{Secret: good.Secret}},
		"long":   {{ID: strings.Repeat("x", 65), Secret: good.Secret}},
		"twice":  {good, good},
		"short":  {{ID: "x", Secret: good.Secret[:31]}},
		"second": {good, {ID: "x"}},
	} {
		if _, err := task.NewKeyring(keys...); !errors.Is(err, pawl.ErrInvalid) {
			t.Errorf("%s: got %v, want ErrInvalid", name, err)
		}
	}
	secret := bytes.Clone(good.Secret)
	k := keyring(t, good)
	clear(good.Secret) // as a careful caller does
	paymentKeys = k
	payload := task.New(payment{"1"}).Payload
	paymentKeys = keyring(t, task.Key{ID: good.ID, Secret: secret})
	if _, err := open[payment](payload); err != nil {
		t.Error(err)
	}
}

var errCard = errors.New("card 4111 refused")

// TestSealErrors looks at what is stored of failures and panics.
func TestSealErrors(t *testing.T) {
	old, current := newKey("old:1"), newKey("new:2")
	keys := keyring(t, old)
	q := pawl.New(memory.New(nil), &pawl.Options{MaxAttempts: 3})
	var hook error
	tasks := task.NewMux()
	task.Register(tasks, func(_ context.Context, job *task.Job[welcome]) error {
		switch job.Attempt {
		case 1:
			return pawl.RetryAfter(0, errCard)
		case 2:
			panic(errCard)
		}
		return pawl.Permanent(errors.New("card 4111 " + strings.Repeat("ö", 5000)))
	}, &task.Options[welcome]{OnBury: func(_ context.Context, _ *task.Job[welcome], err error) { hook = err }})
	tasks.Use(keys.SealErrors)
	receipt, err := q.Enqueue(t.Context(), task.New(welcome{7}))
	if err != nil {
		t.Fatal(err)
	}
	ran, err := worker.Drain(t.Context(), q, tasks, &worker.DrainOptions{Retries: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(ran) != 3 || !errors.Is(ran[0].Err, errCard) || !errors.Is(ran[1].Err, errCard) || ran[2].Verb != pawl.Bury {
		t.Errorf("ran %+v", ran)
	}
	job, err := q.Get(t.Context(), receipt.Queue, receipt.ID)
	if err != nil || len(job.Failures) != 3 || job.State != pawl.Buried {
		t.Fatalf("got %+v, %v", job, err)
	}
	keys = keyring(t, current, old) // rotated meanwhile
	var texts []string
	for _, f := range job.Failures {
		if strings.Contains(f.Error+f.Stack, "4111") || len(f.Error) == pawl.MaxErrorText {
			t.Errorf("stored %q %q", f.Error, f.Stack)
		}
		s, err := keys.OpenError(job.ID, f.Error)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, s[:min(len(s), 24)])
	}
	if diff := cmp.Diff([]string{"card 4111 refused", "panic: card 4111 refused", "card 4111 ööööööö"}, texts); diff != "" {
		t.Error(diff)
	}
	if hook == nil || strings.Contains(hook.Error(), "4111") {
		t.Errorf("the hook got %v", hook)
	}
	checkOpenError(t, keys, job)
}

func checkOpenError(t *testing.T, keys *task.Keyring, job *pawl.Job) {
	t.Helper()
	if s, err := keys.OpenError(job.ID, "worker: handler timed out"); err != nil || s != "worker: handler timed out" {
		t.Errorf("a plain text: got %q, %v", s, err)
	}
	sealed := job.Failures[0].Error
	if s, err := keys.OpenError(pawl.ID{1}, sealed); err == nil {
		t.Errorf("the text of another job: %q", s)
	}
	for _, damaged := range []string{"sealed:", "sealed:x", "sealed:\n:x", sealed + "!", strings.Replace(sealed, "old", "odd", 1)} {
		if s, err := keys.OpenError(job.ID, damaged); err == nil {
			t.Errorf("%q became %q", damaged, s)
		}
	}
}

// FuzzWrapped feeds arbitrary payloads to the codecs that wrap others.
func FuzzWrapped(f *testing.F) {
	paymentKeys = keyring(f, task.Key{ID: "k", Secret: make([]byte, 16)})
	for _, s := range []string{"", "{}", "v1 {}", "v2 {}", "v99 {}", "v3", "\x1f\x8b", "\x00pe1", "\x00pe1\xff", "\x00pe1\x01k"} {
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
