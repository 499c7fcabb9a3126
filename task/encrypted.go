package task

import (
	"bytes"
	"io"
	"reflect"

	"github.com/pawlq/pawl/internal/text"
)

// Encrypted is a codec that encrypts what another makes, with AES-GCM, so that
// those who can read the storage can't read Args and results, nor change them
// unnoticed, nor give those of one kind to another.
//
//	var keys *task.Keyring // made when the program starts
//
//	func (Payment) Codec() task.Codec { return task.Encrypted{Keys: keys} }
//
// Compress first, and let versions be inside: Encrypted{Codec: Gzip{Codec:
// Versioned{...}}}; a Versioned outside is refused by [Register]. The length of
// what is encrypted can be seen, and with it how well it compresses.
//
// A job that was encrypted with a key that the Keyring lacks is handed back, with
// a growing delay, for a worker that has it.
//
// A codec sees neither the job nor its queue, so whoever can write to the
// storage can still give the payload of one job to another of its kind, or
// repeat it; where that matters, put an ID into the Args and check it. Error
// texts are covered by [Keyring.SealErrors]. Not encrypted are all other fields
// of the job: kind, Meta, unique key, Progress.
type Encrypted struct {
	Codec Codec    // what is encrypted; nil means JSON
	Keys  *Keyring // required

	// Context is bound to what is encrypted, and has to be the same to decrypt
	// it. For Args the kind is bound in any case, but a result has none: give it
	// a Context where results of several kinds could be mistaken for each other.
	Context string

	// AllowPlain also decodes what was never encrypted. It is for a kind that
	// has jobs waiting from before, until they are gone: with it, whoever can
	// write to the storage can make up payloads.
	AllowPlain bool
}

// An encrypted value begins with a byte that no JSON text has, the length of the
// key's ID, and the ID.
const sealedMagic = "\x00pe1"

// Encode returns what the other codec makes of v, encrypted. No two are alike.
func (c Encrypted) Encode(v any) ([]byte, error) {
	if c.Keys.empty() {
		return nil, errNoKeys
	}
	plain, err := orJSON(c.Codec).Encode(v)
	if err != nil {
		return nil, err
	}
	id := c.Keys.keys[0].id
	data := append([]byte(sealedMagic), byte(len(id)))
	return c.Keys.seal(append(data, id...), plain, boundKind(v), c.Context), nil
}

var (
	errNoKeys = &typeError{"task: Encrypted without Keys"}
	errPlain  = &typeError{"it is not encrypted"}
)

// Decode lets the other codec decode data, decrypted.
func (c Encrypted) Decode(data []byte, v any) error {
	if c.Keys.empty() {
		return errNoKeys
	}
	rest, sealed := bytes.CutPrefix(data, []byte(sealedMagic))
	if !sealed {
		if c.AllowPlain {
			return orJSON(c.Codec).Decode(data, v)
		}
		return errPlain
	}
	id, rest, ok := cutKeyID(rest)
	switch {
	case !ok:
		return io.ErrUnexpectedEOF
	case !text.IsName(id, maxKeyID):
		return errSealed
	}
	plain, err := c.Keys.open(id, rest, boundKind(v), c.Context)
	if err != nil {
		return err
	}
	return orJSON(c.Codec).Decode(plain, v)
}

// cutKeyID splits off the length of a key's ID and the ID.
func cutKeyID(data []byte) (id string, rest []byte, ok bool) {
	if len(data) == 0 {
		return "", nil, false
	}
	n := int(data[0])
	if data = data[1:]; len(data) < n {
		return "", nil, false
	}
	return string(data[:n]), data[n:], true
}

// boundKind returns the kind of Args, "" of a result. v is a value or points to
// one; methods of the pointer count for both.
func boundKind(v any) string {
	if t := reflect.TypeOf(v); t != nil && t.Kind() != reflect.Pointer {
		v = reflect.New(t).Interface()
	}
	if args, ok := v.(Args); ok {
		return args.Kind()
	}
	return ""
}

// unique is keyed, so that it tells no more than the encrypted form.
func (c Encrypted) unique(v any) ([]byte, error) {
	if c.Keys.empty() {
		return nil, errNoKeys
	}
	form, err := uniqueForm(orJSON(c.Codec), v)
	if err != nil {
		return nil, err
	}
	return c.Keys.mac(form, boundKind(v), c.Context), nil
}

func (c Encrypted) check(t reflect.Type) error {
	if c.Keys.empty() {
		return errNoKeys
	}
	return checkCodec(c.Codec, t)
}

func (c Encrypted) inner() Codec { return c.Codec }
