package task_test

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/task"
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

func TestNewKeyring(t *testing.T) {
	good := newKey("a:b")
	const badID = "pawl: Key.ID must be 1 to 64 letters, digits, '_', '-', '.' or ':'"
	for _, c := range []struct {
		want string
		keys []task.Key
	}{
		{"pawl: Keyring must be made with at least one key", nil},
		{badID, []task.Key{{Secret: good.Secret}}},
		{badID, []task.Key{{ID: strings.Repeat("x", 65), Secret: good.Secret}}},
		{`pawl: key "a:b" must be given only once`, []task.Key{good, good}},
		{`pawl: Secret of key "x" must be 16, 24 or 32 bytes`, []task.Key{{ID: "x", Secret: good.Secret[:31]}}},
		{`pawl: Secret of key "y" must be 16, 24 or 32 bytes`, []task.Key{good, {ID: "y"}}},
	} {
		if _, err := task.NewKeyring(c.keys...); !errors.Is(err, pawl.ErrInvalid) || err.Error() != c.want {
			t.Errorf("got %v, want ErrInvalid: %s", err, c.want)
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

// Whatever prints a key, or what holds one, does not tell the secret.
func TestKeysPrintNoSecrets(t *testing.T) {
	key := task.Key{ID: "2026", Secret: []byte("0123456789abcdef")}
	ring := keyring(t, key)
	holder := struct {
		name string
		ring task.Keyring
	}{"app", *ring}
	var b strings.Builder
	for _, v := range []any{key, &key, []task.Key{key}, ring, *ring, task.Encrypted{Keys: ring}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			fmt.Fprintf(&b, verb+"\n", v)
		}
		slog.New(slog.NewTextHandler(&b, nil)).Info("test", "value", v)
	}
	fmt.Fprintf(&b, "%v %+v %#v\n", holder, holder, holder) // whose fields have no methods for fmt
	slog.New(slog.NewJSONHandler(&b, nil)).Info("test", "key", key, "ring", ring)
	for _, v := range []any{key, []task.Key{key}, []*task.Key{&key}, map[string]task.Key{"a": key}, struct{ K task.Key }{key}, holder, ring} {
		slog.New(slog.NewJSONHandler(&b, nil)).Info("test", "value", v)
		data, err := json.Marshal(v)
		if err != nil {
			t.Error(err)
		}
		b.Write(data)
	}
	secret := fmt.Sprintf("%s|%x|%v|%#v|%s", key.Secret, key.Secret, key.Secret, key.Secret, base64.StdEncoding.EncodeToString(key.Secret))
	for _, part := range strings.Split(secret, "|") {
		if part = strings.Trim(part, "[]"); strings.Contains(b.String(), part) {
			t.Errorf("%q is in\n%s", part, b.String())
		}
	}
	if n := strings.Count(b.String(), "2026"); n < 20 {
		t.Errorf("the ID is printed %d times in\n%s", n, b.String())
	}
	if s := fmt.Sprint((*task.Keyring)(nil)); s != "<nil>" {
		t.Errorf("nil is printed as %q", s)
	}
}
