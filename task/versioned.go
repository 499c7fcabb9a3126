package task

import (
	"bytes"
	"cmp"
	"fmt"
	"reflect"
	"strconv"
)

// Versioned is a codec for Args whose meaning has changed: payloads carry a
// version, and old ones are brought up to date when they are decoded, so that
// handlers know the newest Args only.
//
//	type welcomeV1 struct{ User string }
//	type welcomeV2 struct{ UserID int64 }
//	type Welcome struct{ UserIDs []int64 } // version 3
//
//	func (Welcome) Codec() task.Codec {
//		return task.Versioned{Upcasters: []task.Upcaster{
//			task.Upcast(func(old welcomeV1) (welcomeV2, error) { ... }),
//			task.Upcast(func(old welcomeV2) (Welcome, error) { ... }),
//		}}
//	}
//
// The newest version is one more than there are Upcasters. Payloads without a
// version, those from before Versioned was used, are of version 1.
//
// A payload is "v3 " and what the other codec makes, or "\x00pv3 " and that if the
// codec is neither JSON nor Gzip of JSON, for payloads of others could begin like the
// former. A job that a newer program enqueued is handed back, with a growing delay,
// for a worker of that program; programs from before Versioned would bury it, so
// replace the workers first.
type Versioned struct {
	Codec     Codec      // of all versions, but not Encrypted; nil means JSON. That of older types is not looked at
	Upcasters []Upcaster // from version 1 to 2, from 2 to 3, and so on
}

// An Upcaster turns the Args of one version into those of the next. Upcast
// makes one.
type Upcaster struct {
	from, to reflect.Type
	decode   func(c Codec, data []byte) (any, error)
	convert  func(old any) (any, error)
}

// Upcast returns the Upcaster from Old to New. An error of f buries the job,
// reported by its type alone.
func Upcast[Old, New any](f func(Old) (New, error)) Upcaster {
	return Upcaster{
		from:    reflect.TypeFor[Old](),
		to:      reflect.TypeFor[New](),
		decode:  func(c Codec, data []byte) (any, error) { return decodeBy[Old](c, data) },
		convert: func(old any) (any, error) { return f(old.(Old)) },
	}
}

func (c Versioned) newest() int { return len(c.Upcasters) + 1 }

// Encode returns what the other codec makes of v, with the newest version.
func (c Versioned) Encode(v any) ([]byte, error) {
	if err := c.check(reflect.TypeOf(v)); err != nil {
		return nil, err
	}
	data, err := orJSON(c.Codec).Encode(v)
	if err != nil {
		return nil, err
	}
	if _, _, marked := c.cutVersion(data); c.newest() == 1 && !marked {
		return data, nil
	}
	return append(fmt.Appendf(nil, "%s%d ", c.mark(), c.newest()), data...), nil
}

// Decode decodes data of any version.
func (c Versioned) Decode(data []byte, v any) error {
	version, rest, marked := c.cutVersion(data)
	switch {
	case !marked:
		version, rest = 1, data
	case version > c.newest():
		return &newerError{fmt.Sprintf("it is of version %d, and this program knows %d", version, c.newest())}
	}
	if version == c.newest() {
		return orJSON(c.Codec).Decode(rest, v)
	}
	if err := c.check(reflect.TypeOf(v)); err != nil {
		return err
	}
	value, err := c.Upcasters[version-1].decode(orJSON(c.Codec), rest)
	for _, u := range c.Upcasters[version-1:] {
		if err != nil {
			return err
		}
		value, err = u.convert(value)
	}
	if err != nil {
		return err
	}
	return assign(v, value)
}

// assign stores what the last Upcaster made where v points to.
func assign(v, value any) error {
	to, from := reflect.ValueOf(v), reflect.ValueOf(value)
	if from.Kind() == reflect.Pointer && from.Type() == to.Type() {
		if from.IsNil() {
			return &typeError{"task: an Upcaster returned nil"}
		}
		from = from.Elem()
	}
	to.Elem().Set(from)
	return nil
}

// check reports Upcasters that do not lead from one to the next and to t, which
// is a type or a pointer to it.
func (c Versioned) check(t reflect.Type) error {
	for i, u := range c.Upcasters {
		if u.convert == nil {
			return &typeError{"task: an Upcaster of Versioned was not made by Upcast"}
		}
		want := t
		if i+1 < len(c.Upcasters) {
			want = c.Upcasters[i+1].from
		}
		last := i+1 == len(c.Upcasters)
		if u.to != want && !(last && indirect(u.to) == indirect(want)) {
			return &typeError{fmt.Sprintf("task: Upcaster from version %d to %d makes %v, not %v", i+1, i+2, u.to, want)}
		}
	}
	return cmp.Or(c.checkOrder(), checkCodec(c.Codec, t))
}

// checkOrder refuses Encrypted inside, which binds the kind, and older types have
// none.
func (c Versioned) checkOrder() error {
	for in := c.Codec; in != nil; {
		switch in.(type) {
		case Encrypted, *Encrypted:
			return &typeError{"task: Versioned around Encrypted can't decrypt older versions; it has to be Encrypted{Codec: Versioned{...}}"}
		}
		w, ok := in.(interface{ inner() Codec })
		if !ok {
			return nil
		}
		in = w.inner()
	}
	return nil
}

func indirect(t reflect.Type) reflect.Type {
	if t != nil && t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return t
}

// mark begins payloads with a version: what no payload of the other codec begins
// with, not even by chance.
func (c Versioned) mark() string {
	for in := orJSON(c.Codec); ; {
		switch w := in.(type) {
		case JSON, *JSON:
			return "v"
		case Gzip: // leaves as it is what it can't make smaller
			in = orJSON(w.Codec)
		case *Gzip:
			in = orJSON(w.Codec)
		default:
			return "\x00pv"
		}
	}
}

// cutVersion splits off the mark, the version and a space.
func (c Versioned) cutVersion(data []byte) (version int, rest []byte, ok bool) {
	text, ok := bytes.CutPrefix(data, []byte(c.mark()))
	head, _, found := bytes.Cut(text[:min(len(text), 11)], []byte(" "))
	if !ok || !found || len(head) == 0 || head[0] < '1' || head[0] > '9' {
		return 0, data, false
	}
	version, err := strconv.Atoi(string(head))
	if err != nil {
		return 0, data, false
	}
	return version, text[len(head)+1:], true
}

// unique ignores the version, so that to add an Upcaster changes no keys by
// itself.
func (c Versioned) unique(v any) ([]byte, error) { return uniqueForm(orJSON(c.Codec), v) }

func (c Versioned) inner() Codec { return c.Codec }
