package task

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"slices"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/text"
)

// A Key is a secret for AES and the name under which it is known.
type Key struct {
	ID     string // stored with all that the key encrypts: 1 to 64 letters, digits, '_', '-', '.' or ':'
	Secret []byte // 16, 24 or 32 random bytes
}

// A Keyring encrypts with its first key and decrypts with all of them. To rotate
// keys, first add the new one at the end in all processes, then move it to the
// front, and drop the old one when no job is left that it encrypted. One key
// should encrypt no more than 2³² values.
type Keyring struct {
	keys []ringKey
}

type ringKey struct {
	id     string
	secret []byte
	aead   cipher.AEAD
}

const maxKeyID = 64

// NewKeyring returns a Keyring, or a [pawl.InvalidError].
func NewKeyring(keys ...Key) (*Keyring, error) {
	if len(keys) == 0 {
		return nil, &pawl.InvalidError{Field: "keys", Limit: "at least one"}
	}
	k := new(Keyring)
	for _, key := range keys {
		if !text.IsName(key.ID, maxKeyID) {
			return nil, &pawl.InvalidError{Field: "Key.ID", Limit: "1 to 64 letters, digits, '_', '-', '.' or ':'"}
		}
		if _, twice := k.find(key.ID); twice {
			return nil, &pawl.InvalidError{Field: "Key.ID", Limit: "given once each"}
		}
		block, err := aes.NewCipher(key.Secret)
		if err != nil {
			return nil, &pawl.InvalidError{Field: "Key.Secret", Limit: "16, 24 or 32 bytes"}
		}
		aead, err := cipher.NewGCMWithRandomNonce(block)
		if err != nil {
			return nil, err
		}
		k.keys = append(k.keys, ringKey{key.ID, slices.Clone(key.Secret), aead})
	}
	return k, nil
}

func (k *Keyring) find(id string) (ringKey, bool) {
	i := slices.IndexFunc(k.keys, func(key ringKey) bool { return key.id == id })
	if i < 0 {
		return ringKey{}, false
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
		return nil, &typeError{fmt.Sprintf("encrypted with key %q, which the Keyring lacks", id)}
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
	h := hmac.New(sha256.New, k.keys[0].secret)
	h.Write(associated("unique", bound)) // hashes return no errors
	h.Write(data)
	return h.Sum(nil)
}
