package task

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"reflect"

	"github.com/pawlq/pawl"
)

// Args are what one kind of job needs to know. Kind names the handler that runs
// the job, in the alphabet of [pawl.Request]; it must not depend on the fields.
//
// Args may have two more methods, [Defaulter] and [Coder].
type Args interface{ Kind() string }

// A Defaulter is Args that says how its jobs are enqueued: what Defaults
// returns, queue, priority, attempts, rescues, unique key, retention and all
// else, is what [New] starts from. Kind and Payload in it are ignored, zero
// fields mean what they mean in any request.
//
//	func (w Welcome) Defaults() pawl.Request {
//		return pawl.Request{Queue: "mail", MaxAttempts: 5, UniqueKey: task.UniqueByArgs(w)}
//	}
//
// Defaults is also called with zero Args, by [Register], to learn the queue that
// workers serve for the kind. A process whose Args choose among several queues
// has to name the others to its workers.
type Defaulter interface {
	Args
	Defaults() pawl.Request
}

// New returns a request for a job of args' kind: args.Defaults() if args is a
// [Defaulter], with Kind and the encoded Payload. Settings are fields of the
// request and may be set before it is enqueued.
//
// If args don't encode, New keeps an [EncodeError] in Request.Err and Enqueue
// returns it.
func New[A Args](args A) *pawl.Request {
	r := new(pawl.Request)
	if d, ok := any(args).(Defaulter); ok {
		*r = d.Defaults()
	}
	r.Kind = args.Kind()
	payload, err := encode(args)
	if err == nil {
		err = hiddenMethods[A]()
	}
	if err != nil {
		r.Err = err
	}
	r.Payload = payload
	return r
}

// UniqueByArgs returns a key for Request.UniqueKey that two jobs share if they
// have the same kind and the same encoded args: the kind and a hash of the
// payload, within [pawl.MaxKeyLen] bytes. Keys are compared within a queue.
//
// It needs a codec that encodes equal args equally; [JSON] and [Raw] do, and what
// [Gzip] and [Versioned] wrap is taken alone. To be unique by a part of the args,
// build a key from that part, beginning with the kind: "welcome:" + w.Email.
//
// For [Encrypted] the hash is keyed with the Keyring's first key. So equal args
// have another key before a rotation than after it, and while some processes have
// moved the new key to the front and others have not, two jobs with equal args
// can wait. Where that matters, make the key of an HMAC with a secret that does
// not rotate.
//
// Args that don't encode have the key of an empty payload; New reports them.
func UniqueByArgs(args Args) string {
	sum := sha256.Sum256(uniquePayload(args))
	return args.Kind() + ":" + base64.RawURLEncoding.EncodeToString(sum[:])
}

// uniquePayload is empty for what fails to encode, or panics: that has a request
// which fails to be enqueued.
func uniquePayload(args Args) (payload []byte) {
	defer func() { _ = recover() }()
	payload, _ = uniqueForm(codecOf(args), args)
	return payload
}

// hiddenMethods reports the mistake of declaring Defaults or Codec on *A while
// A is what is enqueued: the methods would be passed over in silence.
func hiddenMethods[A Args]() error {
	var value A
	if _, hidden := any((*A)(nil)).(Defaulter); hidden {
		if _, ok := any(value).(Defaulter); !ok {
			return fmt.Errorf("task: method Defaults of %v needs a value receiver", reflect.TypeFor[A]())
		}
	}
	return hiddenCodec[A]()
}

func hiddenCodec[T any]() error {
	var value T
	if _, hidden := any((*T)(nil)).(Coder); hidden {
		if _, ok := any(value).(Coder); !ok {
			return fmt.Errorf("task: method Codec of %v needs a value receiver", reflect.TypeFor[T]())
		}
	}
	return nil
}

// zero returns Args to decode into, and to ask for kind, defaults and codec.
// Where A is a pointer, it points to a zero value.
func zero[A any]() A {
	var a A
	if t := reflect.TypeFor[A](); t.Kind() == reflect.Pointer {
		a, _ = reflect.New(t.Elem()).Interface().(A)
	}
	return a
}

var errInterface = errors.New("task: Args of a handler must be a concrete type")

// concrete returns zero Args, or what makes A unfit for a handler.
func concrete[A Args]() (A, error) {
	if reflect.TypeFor[A]().Kind() == reflect.Interface {
		var none A
		return none, errInterface
	}
	return zero[A](), hiddenMethods[A]()
}
