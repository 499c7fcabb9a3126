package main

import (
	"image"
	"image/color"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFit(t *testing.T) {
	for _, c := range []struct{ w, h, wantW, wantH int }{
		{150, 103, 128, 88},
		{103, 150, 88, 128},
		{100, 20, 100, 20},
		{128, 128, 128, 128},
		{4000, 4000, 128, 128},
		{10_000, 1, 128, 1},
		{1, 10_000, 1, 128},
	} {
		if w, h := fit(c.w, c.h, 128); w != c.wantW || h != c.wantH {
			t.Errorf("fit(%d, %d) = %d, %d; want %d, %d", c.w, c.h, w, h, c.wantW, c.wantH)
		}
	}
}

func TestScaleDownAverages(t *testing.T) {
	for _, c := range []struct {
		name string
		from []uint8 // one row of grey
		want []uint8
	}{
		{"same size", []uint8{1, 2, 3}, []uint8{1, 2, 3}},
		{"half", []uint8{0, 100, 50, 70}, []uint8{50, 60}},
		{"three to two", []uint8{30, 60, 90}, []uint8{40, 80}}, // the middle counts half on each side
		{"five to three", []uint8{50, 50, 50, 50, 50}, []uint8{50, 50, 50}},
		{"to one", []uint8{0, 0, 0, 255}, []uint8{64}},
	} {
		t.Run(c.name, func(t *testing.T) {
			across := image.NewGray(image.Rect(0, 0, len(c.from), 1))
			down := image.NewGray(image.Rect(0, 0, 1, len(c.from)))
			copy(across.Pix, c.from)
			copy(down.Pix, c.from)
			if diff := cmp.Diff(c.want, reds(scaleDown(across, len(c.want), 1))); diff != "" {
				t.Errorf("across (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.want, reds(scaleDown(down, 1, len(c.want)))); diff != "" {
				t.Errorf("down (-want +got):\n%s", diff)
			}
		})
	}
}

func reds(m *image.RGBA) []uint8 {
	var r []uint8
	for i := 0; i < len(m.Pix); i += 4 {
		r = append(r, m.Pix[i])
	}
	return r
}

// TestScaleDownKeepsUniform scales plain pictures between many sizes: weights
// that do not add up to one show as another colour.
func TestScaleDownKeepsUniform(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	want := color.RGBA{200, 100, 7, 255}
	for range 200 {
		w, h := 1+r.IntN(90), 1+r.IntN(90)
		dw, dh := 1+r.IntN(w), 1+r.IntN(h)
		got := scaleDown(plain(w, h, want), dw, dh)
		if diff := cmp.Diff(plain(dw, dh, want).Pix, got.Pix); diff != "" {
			t.Fatalf("%d × %d to %d × %d (-want +got):\n%s", w, h, dw, dh, diff)
		}
	}
}

func plain(w, h int, c color.RGBA) *image.RGBA {
	m := image.NewRGBA(image.Rect(0, 0, w, h))
	for i := 0; i < len(m.Pix); i += 4 {
		copy(m.Pix[i:], []uint8{c.R, c.G, c.B, c.A})
	}
	return m
}

func TestScaleDownWeighsAlpha(t *testing.T) {
	m := image.NewNRGBA(image.Rect(0, 0, 2, 1))
	m.SetNRGBA(0, 0, color.NRGBA{255, 0, 0, 255})
	m.SetNRGBA(1, 0, color.NRGBA{0, 255, 0, 0}) // invisible: its green must not show
	got := scaleDown(m, 1, 1).RGBAAt(0, 0)
	if want := (color.RGBA{128, 0, 0, 128}); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestScaleDownSubImage(t *testing.T) {
	m := plain(10, 10, color.RGBA{0, 0, 0, 255})
	m.SetRGBA(7, 7, color.RGBA{255, 255, 255, 255})
	sub := m.SubImage(image.Rect(6, 6, 8, 8))
	if got := scaleDown(sub, 1, 1).RGBAAt(0, 0); got.R != 64 {
		t.Errorf("got %v, want a quarter of white", got)
	}
}

func BenchmarkScaleDown(b *testing.B) {
	m := image.NewYCbCr(image.Rect(0, 0, 4000, 3000), image.YCbCrSubsampleRatio420)
	for b.Loop() {
		scaleDown(m, 128, 96)
	}
}
