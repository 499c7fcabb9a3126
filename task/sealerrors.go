package task

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"regexp"
	"runtime/debug"
	"strings"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/text"
)

const (
	sealedError = "sealed:" // then the key's ID, ':' and base64

	// sealedAround is what is left of MaxErrorText for the words that a pool, or
	// a program, puts around a sealed text: one that is cut can't be opened.
	sealedAround = 256

	// maxSealed is how much of a text has room once the key's ID, nonce, tag and
	// base64 have taken their part.
	maxSealed = (pawl.MaxErrorText-sealedAround-len(sealedError)-maxKeyID-1)*3/4 - 12 - 16
)

// SealErrors is middleware for [Mux.Use] that encrypts the texts of the errors
// that handlers return, and of panics with their stacks, as they are stored,
// logged and given to OnError and OnBury. [Keyring.OpenError] decrypts them, if
// they are from this very job. The errors wrapped in them are found by errors.Is
// and errors.As as before. Use it before middleware that makes errors of its own.
// A [DecodeError] and a [pawl.Snooze], as they are, quote nothing and stay plain.
//
// Texts that the pool makes, of timeouts and lost leases, stay as they are; they
// hold nothing of the job's data. Of a text the first 1,250 bytes are kept. What a
// handler settles by hand, with Nack or Bury of a [pawl.Queue] or a [pawl.Tx], does
// not come by here: see [Keyring.SealError].
func (k *Keyring) SealErrors(next Handler) Handler {
	return func(ctx context.Context, job *pawl.Job) (result []byte, err error) {
		defer func() {
			if v := recover(); v != nil {
				cause, _ := v.(error)
				result, err = nil, k.sealText(job.ID, fmt.Sprintf("panic: %v\n\n%s", v, debug.Stack()), cause)
			}
		}()
		result, err = next(ctx, job)
		return result, k.SealError(job.ID, err)
	}
}

// SealError does to one error what [Keyring.SealErrors] does to those that
// handlers return. It is for failures that are settled by hand:
//
//	err = tx.Bury(ctx, job.Job, keys.SealError(job.ID, err))
//
// SealError of nil is nil, and of what is sealed already, or can be plain, that
// itself.
func (k *Keyring) SealError(id pawl.ID, err error) error {
	if err == nil || mayBePlain(err) {
		return err
	}
	return k.sealText(id, err.Error(), err)
}

// mayBePlain reports whether the text of err is sealed, or was made by pawl of
// what is no secret. One that has words around it is neither.
func mayBePlain(err error) bool {
	var (
		sealed *sealedErr
		decode *DecodeError
		plain  = err.Error()
	)
	if errors.As(err, &sealed) && sealed.text == plain || errors.As(err, &decode) && decode.Error() == plain {
		return true
	}
	o := pawl.OutcomeOf(&pawl.Job{}, err, pawl.Constant(0))
	return o.Verb == pawl.SnoozeFor && pawl.Snooze(o.Delay).Error() == plain
}

func (k *Keyring) sealText(id pawl.ID, s string, cause error) error {
	if k.empty() {
		return &sealedErr{"task: the Keyring for this error's text has no keys", cause}
	}
	sealed := k.seal(nil, []byte(text.Clean(s, maxSealed)), "error", id.String())
	return &sealedErr{sealedError + k.keys[0].id + ":" + base64.RawURLEncoding.EncodeToString(sealed), cause}
}

// An ID may have colons, base64 has none. Nonce and tag alone are 38 characters.
var sealedText = regexp.MustCompile(sealedError + `([A-Za-z0-9_.:-]{1,64}):([A-Za-z0-9_-]{38,})`)

// OpenError returns a text with what [Keyring.SealErrors] encrypted in it
// decrypted: an entry of the job's Failures, or FailedError.Last. The words
// around it, such as those of a pool about a timeout, stay, and a text in which
// nothing was encrypted comes back as it is.
func (k *Keyring) OpenError(id pawl.ID, s string) (string, error) {
	var b strings.Builder
	end := 0
	for _, m := range sealedText.FindAllStringSubmatchIndex(s, -1) {
		plain, err := k.openText(id, s[m[2]:m[3]], s[m[4]:m[5]])
		if err != nil {
			return "", err
		}
		b.WriteString(s[end:m[0]])
		b.Write(plain)
		end = m[1]
	}
	return b.String() + s[end:], nil
}

func (k *Keyring) openText(id pawl.ID, keyID, data string) ([]byte, error) {
	sealed, err := base64.RawURLEncoding.DecodeString(data)
	if err != nil {
		return nil, errSealed
	}
	return k.open(keyID, sealed, "error", id.String())
}

type sealedErr struct {
	text  string
	cause error
}

func (e *sealedErr) Error() string { return e.text }
func (e *sealedErr) Unwrap() error { return e.cause }
