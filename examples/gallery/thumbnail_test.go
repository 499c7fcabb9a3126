package main

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"io"
	"strings"
	"testing"
)

func TestMakeThumbnail(t *testing.T) {
	grey := image.NewGray(image.Rect(0, 0, 300, 200))
	clear := image.NewNRGBA(image.Rect(0, 0, 300, 200))
	for _, c := range []struct {
		name       string
		content    []byte
		wantFormat string
	}{
		{"png", encode(t, png.Encode, grey), "jpeg"},
		{"transparent png", encode(t, png.Encode, clear), "png"},
		{"jpeg", encode(t, asJPEG, grey), "jpeg"},
		{"gif", encode(t, asGIF, grey), "jpeg"},
	} {
		t.Run(c.name, func(t *testing.T) {
			thumb, err := makeThumbnail(c.content)
			if err != nil {
				t.Fatal(err)
			}
			got, format, err := image.DecodeConfig(bytes.NewReader(thumb))
			if err != nil || format != c.wantFormat || got.Width != 128 || got.Height != 85 {
				t.Errorf("%s of %d × %d, error %v; want %s of 128 × 85", format, got.Width, got.Height, err, c.wantFormat)
			}
		})
	}
}

func asJPEG(w io.Writer, m image.Image) error { return jpeg.Encode(w, m, nil) }
func asGIF(w io.Writer, m image.Image) error  { return gif.Encode(w, m, nil) }

func encode(t *testing.T, to func(io.Writer, image.Image) error, m image.Image) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := to(&b, m); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestMakeThumbnailRefuses(t *testing.T) {
	good := encode(t, png.Encode, noise(60, 60))
	for _, c := range []struct {
		name    string
		content []byte
		want    string
	}{
		{"empty", nil, "unknown format"},
		{"text", []byte("not a picture"), "unknown format"},
		{"half", good[:len(good)/2], "decode the png"},
		{"header only", good[:20], "read the header"},
		{"huge", announced(good, 100_000, 100_000), "too large: 100000 × 100000"},
		{"just too large", announced(good, maxPixels/1024+1, 1024), "too large"},
		{"vast", announced(good, 1<<31-1, 1<<31-1), "read the header"}, // the decoder's own limit
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := makeThumbnail(c.content)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got error %v, want one with %q", err, c.want)
			}
		})
	}
}

func noise(w, h int) image.Image {
	m := image.NewRGBA(image.Rect(0, 0, w, h))
	for i := range w * h {
		m.Set(i%w, i/w, color.RGBA{uint8(i * 7), uint8(i * i), uint8(i >> 3), 255})
	}
	return m
}

// announced returns the PNG with another size in its header, whose checksum is
// right.
func announced(content []byte, w, h uint32) []byte {
	c := bytes.Clone(content)
	binary.BigEndian.PutUint32(c[16:], w)
	binary.BigEndian.PutUint32(c[20:], h)
	binary.BigEndian.PutUint32(c[29:], crc32.ChecksumIEEE(c[12:29]))
	return c
}
