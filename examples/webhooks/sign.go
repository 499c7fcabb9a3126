package main

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Requests are signed as Standard Webhooks has it, with shared secrets: see
// https://www.standardwebhooks.com. It names the headers, too.

const (
	secretPrefix     = "whsec_"
	signaturePrefix  = "v1,"
	minKey, maxKey   = 24, 64 // bytes
	tolerance        = 5 * time.Minute
	headerID         = "Webhook-Id"
	headerAt         = "Webhook-Timestamp"
	headerSignatures = "Webhook-Signature"
)

func newSecret() string {
	key := make([]byte, 32)
	rand.Read(key) // never fails
	return secretPrefix + base64.StdEncoding.EncodeToString(key)
}

var errSecret = errors.New("a secret must be " + secretPrefix + " and 24 to 64 bytes in base64")

// keyOf returns the key that a secret stands for.
func keyOf(secret string) ([]byte, error) {
	text, found := strings.CutPrefix(secret, secretPrefix)
	key, err := base64.StdEncoding.DecodeString(text)
	if !found || err != nil || len(key) < minKey || len(key) > maxKey {
		return nil, errSecret
	}
	return key, nil
}

func sign(key []byte, id, timestamp, body string) string {
	h := hmac.New(sha256.New, key)
	fmt.Fprintf(h, "%s.%s.%s", id, timestamp, body)
	return signaturePrefix + base64.StdEncoding.EncodeToString(h.Sum(nil))
}

// genuine reports whether a request was made by who knows the key, and lately: an
// old one may be a recording. While keys are changed a request has a signature by
// each.
func genuine(key []byte, header http.Header, body string, now time.Time) bool {
	id, at := header.Get(headerID), header.Get(headerAt)
	seconds, err := strconv.ParseInt(at, 10, 64)
	if id == "" || err != nil || now.Sub(time.Unix(seconds, 0)).Abs() > tolerance {
		return false
	}
	want := []byte(sign(key, id, at, body))
	for signature := range strings.FieldsSeq(header.Get(headerSignatures)) {
		if hmac.Equal([]byte(signature), want) {
			return true
		}
	}
	return false
}
