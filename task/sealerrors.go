package task

import (
	"context"
	"encoding/base64"
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/text"
)

const (
	sealedError = "sealed:" // then the key's ID, ':' and base64

	// maxSealed is how much of a text is left of MaxErrorText once the key's
	// ID, nonce, tag and base64 have taken their part.
	maxSealed = (pawl.MaxErrorText-len(sealedError)-maxKeyID-1)*3/4 - 32
)

// SealErrors is middleware for [Mux.Use] that encrypts the texts of the errors
// that handlers return, and of panics with their stacks, as they are stored,
// logged and given to OnError and OnBury. [Keyring.OpenError] decrypts them, if
// they are from this very job. The errors wrapped in them are found by errors.Is
// and errors.As as before. Use it before middleware that makes errors of its own.
//
// Texts that the pool makes, of timeouts and lost leases, stay as they are; they
// hold nothing of the job's data. At most 1,400 bytes of a text are kept.
func (k *Keyring) SealErrors(next Handler) Handler {
	return func(ctx context.Context, job *pawl.Job) (result []byte, err error) {
		defer func() {
			if v := recover(); v != nil {
				cause, _ := v.(error)
				result, err = nil, k.sealError(job.ID, fmt.Sprintf("panic: %v\n\n%s", v, debug.Stack()), cause)
			}
		}()
		result, err = next(ctx, job)
		if err != nil {
			err = k.sealError(job.ID, err.Error(), err)
		}
		return result, err
	}
}

func (k *Keyring) sealError(id pawl.ID, s string, cause error) error {
	sealed := k.seal(nil, []byte(text.Clean(s, maxSealed)), "error", id.String())
	return &sealedErr{sealedError + k.keys[0].id + ":" + base64.RawURLEncoding.EncodeToString(sealed), cause}
}

// OpenError returns the text that [Keyring.SealErrors] encrypted: an entry of
// the job's Failures, or FailedError.Last. A text that was not encrypted comes
// back as it is.
func (k *Keyring) OpenError(id pawl.ID, s string) (string, error) {
	rest, ok := strings.CutPrefix(s, sealedError)
	if !ok {
		return s, nil
	}
	end := strings.LastIndexByte(rest, ':') // an ID may have colons, base64 has none
	keyID, data := rest[:max(end, 0)], rest[end+1:]
	sealed, err := base64.RawURLEncoding.DecodeString(data)
	if err != nil || !text.IsName(keyID, maxKeyID) {
		return "", errSealed
	}
	plain, err := k.open(keyID, sealed, "error", id.String())
	return string(plain), err
}

type sealedErr struct {
	text  string
	cause error
}

func (e *sealedErr) Error() string { return e.text }
func (e *sealedErr) Unwrap() error { return e.cause }
