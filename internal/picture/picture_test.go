package picture_test

import (
	"bytes"
	"encoding/base64"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"math/rand/v2"
	"testing"

	"github.com/daycare-run/sandbox/internal/picture"
)

func noise(width, height int) *image.Paletted {
	palette := make(color.Palette, 256)
	for i := range palette {
		palette[i] = color.RGBA{uint8(i), uint8(i * 7), uint8(i * 13), 255}
	}
	p := image.NewPaletted(image.Rect(0, 0, width, height), palette)
	for i := range p.Pix {
		p.Pix[i] = uint8(rand.Uint32())
	}
	return p
}

// samples returns a picture of each format.
func samples(t testing.TB) map[string][]byte {
	t.Helper()
	p := noise(40, 30)
	var asPNG, asJPEG, asGIF bytes.Buffer
	for _, err := range []error{
		png.Encode(&asPNG, p), jpeg.Encode(&asJPEG, p, nil),
		gif.EncodeAll(&asGIF, &gif.GIF{Image: []*image.Paletted{p, p}, Delay: []int{1, 1}}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	asWebP, err := base64.StdEncoding.DecodeString("UklGRiIAAABXRUJQVlA4IBYAAAAwAQCdASoBAAEADsD+JaQAA3AAAAAA")
	if err != nil {
		t.Fatal(err)
	}
	return map[string][]byte{"image/png": asPNG.Bytes(), "image/jpeg": asJPEG.Bytes(), "image/gif": asGIF.Bytes(), "image/webp": asWebP}
}

func TestPicturesAreParsedWhole(t *testing.T) {
	for mime, data := range samples(t) {
		want := picture.Picture{MIMEType: mime, Width: 40, Height: 30}
		if mime == "image/webp" {
			want.Width, want.Height = 1, 1
		}
		if got, ok := picture.Parse(data); !ok || got != want {
			t.Errorf("%s: %+v %v", mime, got, ok)
		}
		if got, ok := picture.Parse(append(bytes.Clone(data), "what a camera adds"...)); !ok || got != want {
			t.Errorf("%s with more behind it: %+v %v", mime, got, ok)
		}
		for cut := range len(data) - 1 {
			if got, ok := picture.Parse(data[:cut]); ok {
				t.Errorf("%d of %d bytes of %s: %+v", cut, len(data), mime, got)
			}
		}
	}
}

func TestNonPicturesAreRefused(t *testing.T) {
	garbage := bytes.Repeat([]byte("garbage "), 1000)
	all := samples(t)
	for name, data := range map[string][]byte{
		"nothing":               nil,
		"garbage after PNG":     append(bytes.Clone(all["image/png"][:33]), garbage...),
		"PNG's signature":       append([]byte("\x89PNG\r\n\x1a\n"), garbage...),
		"three bytes of JPEG":   []byte("\xff\xd8\xff"),
		"garbage after JPEG":    append([]byte("\xff\xd8\xff\xe0"), garbage...),
		"GIF of 0 by 0":         []byte("GIF89a\x00\x00\x00\x00\x00\x00\x00;"),
		"GIF without a picture": []byte("GIF89a\x01\x00\x01\x00\x00\x00\x00;"),
		"a text":                []byte("GIF89a is a format"),
	} {
		if got, ok := picture.Parse(data); ok {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, data := range samples(f) {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if p, ok := picture.Parse(data); ok && (p.Width < 1 || p.Height < 1) {
			t.Errorf("%+v", p)
		}
	})
}
