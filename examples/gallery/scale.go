package main

import (
	"image"
	"image/draw"
)

// fit returns the largest size of the proportions w:h that fits a square of
// side length side, and never enlarges.
func fit(w, h, side int) (dw, dh int) {
	switch {
	case w <= side && h <= side:
		return w, h
	case w >= h:
		return side, max(1, (h*side+w/2)/w)
	default:
		return max(1, (w*side+h/2)/h), side
	}
}

// scaleDown returns src with dw × dh pixels, none of them zero nor more than
// src has. Each pixel is the average of the area of src that it covers, with
// partly covered pixels counting in part, so that nothing is skipped and fine
// patterns do not turn into new ones.
//
// It reads src row by row: beside src and the result it needs the memory of one
// row.
func scaleDown(src image.Image, dw, dh int) *image.RGBA {
	var (
		from = src.Bounds()
		dst  = image.NewRGBA(image.Rect(0, 0, dw, dh))
		row  = image.NewRGBA(image.Rect(0, 0, from.Dx(), 1))
		line = make([]uint64, 4*dw) // one row of src, averaged across
		sum  = make([]uint64, 4*dw) // the row of dst being summed up
		area = uint64(from.Dx()) * uint64(from.Dy())
	)
	to := 0
	for y := range from.Dy() {
		// The alpha of an RGBA is multiplied into its colours, so averages
		// weigh transparent pixels as they should.
		draw.Draw(row, row.Bounds(), src, image.Pt(from.Min.X, from.Min.Y+y), draw.Src)
		averageAcross(line, row.Pix, from.Dx(), dw)
		here, next := split(y, from.Dy(), dh)
		add(sum, line, here)
		if (y+1)*dh < (to+1)*from.Dy() {
			continue
		}
		divide(dst.Pix[to*dst.Stride:], sum, area)
		to++
		clear(sum)
		add(sum, line, next)
	}
	return dst
}

// split tells how much of source position i of n belongs to the destination of
// m positions in which it begins, and how much to the next one. In units of
// 1/(n·m) of the whole, a source position is m long and a destination n.
func split(i, n, m int) (here, next uint64) {
	begin, end := i*m, (i+1)*m
	border := (begin/n + 1) * n
	if end <= border {
		return uint64(m), 0
	}
	return uint64(border - begin), uint64(end - border)
}

// averageAcross sums the sw pixels of pix into the dw of line.
func averageAcross(line []uint64, pix []uint8, sw, dw int) {
	clear(line)
	for x := range sw {
		here, next := split(x, sw, dw)
		to := x * dw / sw * 4
		for c, v := range pix[4*x : 4*x+4] {
			line[to+c] += here * uint64(v)
			if next > 0 {
				line[to+4+c] += next * uint64(v)
			}
		}
	}
}

func add(sum, line []uint64, weight uint64) {
	if weight == 0 {
		return
	}
	for i, v := range line {
		sum[i] += weight * v
	}
}

// divide writes sum/area, rounded, to pix.
func divide(pix []uint8, sum []uint64, area uint64) {
	for i, v := range sum {
		pix[i] = uint8((v + area/2) / area)
	}
}
