package main

import (
	"bytes"
	"fmt"
	"image"
	_ "image/gif"
	"image/jpeg"
	"image/png"
)

const (
	// thumbSide bounds width and height of a thumbnail, in pixels.
	thumbSide = 128

	// maxPixels bounds the pictures that are decoded. A decoder needs up to 16
	// bytes a pixel (a progressive JPEG in full colour), so this keeps one
	// worker below 400 MB. It is what a camera of 24 megapixels makes.
	maxPixels = 24 << 20
)

// makeThumbnail decodes a picture and returns it small: as PNG if it has
// transparent parts, else as JPEG. Its error means that the picture is broken
// or too large, and will always be.
func makeThumbnail(content []byte) ([]byte, error) {
	picture, err := decode(content)
	if err != nil {
		return nil, err
	}
	size := picture.Bounds().Size()
	dw, dh := fit(size.X, size.Y, thumbSide)
	thumb := scaleDown(picture, dw, dh)

	var b bytes.Buffer
	if thumb.Opaque() {
		err = jpeg.Encode(&b, thumb, &jpeg.Options{Quality: 85})
	} else {
		err = png.Encode(&b, thumb)
	}
	return b.Bytes(), err
}

// decode decodes a picture, having looked at its size first: a file of a few
// bytes can announce billions of pixels.
func decode(content []byte) (image.Image, error) {
	c, format, err := image.DecodeConfig(bytes.NewReader(content))
	if err != nil {
		return nil, fmt.Errorf("read the header: %w", err)
	}
	if c.Width <= 0 || c.Height <= 0 {
		return nil, fmt.Errorf("the %s has no pixels: %d × %d", format, c.Width, c.Height)
	}
	if c.Width > maxPixels/c.Height {
		return nil, fmt.Errorf("the %s is too large: %d × %d pixels, at most %d in all", format, c.Width, c.Height, maxPixels)
	}
	picture, _, err := image.Decode(bytes.NewReader(content))
	if err != nil {
		return nil, fmt.Errorf("decode the %s: %w", format, err)
	}
	return picture, nil
}
