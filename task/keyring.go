package task

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"slices"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/text"
)

// A Key is a secret for AES and the name under which it is known. Packages fmt,
// log/slog and encoding/json print the name alone, but fmt, which calls no methods
// there, prints all of a Key in an unexported field.
type Key struct {
	ID     string // stored with all that the key encrypts: 1 to 64 letters, digits, '_', '-', '.' or ':'
	Secret []byte // 16, 24 or 32 random bytes
}

// Format prints the ID of k, whatever the verb.
func (k Key) Format(s fmt.State, _ rune) { fmt.Fprintf(s, "task.Key(%s)", k.ID) }

// LogValue returns what Format prints.
func (k Key) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(k)) }

// MarshalText returns what Format prints.
func (k Key) MarshalText() ([]byte, error) { return fmt.Append(nil, k), nil }

// A Keyring encrypts with its first key and decrypts with all of them. One key
// should encrypt no more than 2³² values.
//
// To rotate keys, first add the new one at the end in all processes, and then
// move it to the front in all of them. From then on the old one encrypts nothing,
// and what it encrypted leaves with its jobs: those that wait, finished ones when
// their Retention is over, buried ones when they are deleted, or kicked and done.
// It may be dropped when no job is left, in any state, that was enqueued before
// the last process had moved it, which is when this finds none:
//
//	for job, err := range q.Jobs(ctx, pawl.Filter{CreatedBefore: moved}) { ... }
//
// A Keyring does not change. A process that is given new keys while it runs keeps
// the present Keyring in an atomic.Pointer; the example shows how.
type Keyring struct {
	keys []*ringKey // pointers, of which fmt prints no more than the address
}

type ringKey struct {
	id   string
	aead cipher.AEAD
	mac  []byte // the key of what has to be equal for equal values
}

const maxKeyID = 64

// NewKeyring returns a Keyring, or a [pawl.InvalidError].
func NewKeyring(keys ...Key) (*Keyring, error) {
	if len(keys) == 0 {
		return nil, &pawl.InvalidError{Field: "Keyring", Limit: "made with at least one key"}
	}
	k := new(Keyring)
	for _, key := range keys {
		if !text.IsName(key.ID, maxKeyID) {
			return nil, &pawl.InvalidError{Field: "Key.ID", Limit: "1 to 64 letters, digits, '_', '-', '.' or ':'"}
		}
		if _, twice := k.find(key.ID); twice {
			return nil, &pawl.InvalidError{Field: fmt.Sprintf("key %q", key.ID), Limit: "given only once"}
		}
		ring, err := newRingKey(key)
		if err != nil {
			return nil, err
		}
		k.keys = append(k.keys, ring)
	}
	return k, nil
}

func newRingKey(key Key) (*ringKey, error) {
	block, err := aes.NewCipher(key.Secret)
	if err != nil {
		return nil, &pawl.InvalidError{Field: fmt.Sprintf("Secret of key %q", key.ID), Limit: "16, 24 or 32 bytes"}
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, err
	}
	mac, err := hkdf.Key(sha256.New, key.Secret, nil, "pawl task unique key", sha256.Size)
	if err != nil {
		return nil, err
	}
	return &ringKey{key.ID, aead, mac}, nil
}

// Format prints the IDs of the keys, whatever the verb.
func (k Keyring) Format(s fmt.State, _ rune) {
	ids := make([]string, len(k.keys))
	for i, key := range k.keys {
		ids[i] = key.id
	}
	fmt.Fprintf(s, "task.Keyring%v", ids)
}

// LogValue returns what Format prints.
func (k *Keyring) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(k)) }

// empty reports whether k can encrypt nothing.
func (k *Keyring) empty() bool { return k == nil || len(k.keys) == 0 }

func (k *Keyring) find(id string) (*ringKey, bool) {
	if k == nil {
		return nil, false
	}
	i := slices.IndexFunc(k.keys, func(key *ringKey) bool { return key.id == id })
	if i < 0 {
		return nil, false
	}
	return k.keys[i], true
}

// seal appends the encrypted plain text to dst. What is bound has to be the same
// when it is opened.
func (k *Keyring) seal(dst, plain []byte, bound ...string) []byte {
	return k.keys[0].aead.Seal(dst, nil, plain, associated(k.keys[0].id, bound))
}

// open returns the plain text of what seal made with the key of that ID.
func (k *Keyring) open(id string, sealed []byte, bound ...string) ([]byte, error) {
	key, ok := k.find(id)
	if !ok {
		return nil, &newerError{fmt.Sprintf("encrypted with key %q, which the Keyring lacks", id)}
	}
	plain, err := key.aead.Open(nil, nil, sealed, associated(id, bound))
	if err != nil {
		return nil, errSealed
	}
	return plain, nil
}

var errSealed = &typeError{"encrypted for another kind, context or job, or changed since"}

// associated joins parts so that no two lists give the same.
func associated(id string, bound []string) []byte {
	var b []byte
	for _, part := range append([]string{id}, bound...) {
		b = fmt.Appendf(b, "%d:%s", len(part), part)
	}
	return b
}

// mac is as good as a hash of data for telling values apart, but tells nothing
// to those who have no key.
func (k *Keyring) mac(data []byte, bound ...string) []byte {
	h := hmac.New(sha256.New, k.keys[0].mac)
	h.Write(associated("unique", bound)) // hashes return no errors
	h.Write(data)
	return h.Sum(nil)
}
