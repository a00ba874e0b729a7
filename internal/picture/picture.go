// Package picture tells pictures from data that only begins like one.
package picture

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"image"
	_ "image/gif" // the formats that image.DecodeConfig knows
	_ "image/jpeg"
	_ "image/png"

	_ "golang.org/x/image/webp"
)

// Picture is what a whole picture says about itself.
type Picture struct {
	// MIMEType is image/png, image/jpeg, image/gif or image/webp.
	MIMEType      string
	Width, Height int
}

// Parse reports whether the data is one whole picture with at least one pixel: its header can be
// decoded, and its parts follow each other to the format's end. It decodes no pixels, and takes
// time and memory for the data alone, whatever size of the picture that states.
func Parse(data []byte) (Picture, bool) {
	config, format, err := image.DecodeConfig(bytes.NewReader(data))
	if err != nil || config.Width < 1 || config.Height < 1 {
		return Picture{}, false
	}
	ends := map[string]func([]byte) bool{"png": pngEnds, "jpeg": jpegEnds, "gif": gifEnds, "webp": webpEnds}[format]
	return Picture{"image/" + format, config.Width, config.Height}, ends != nil && ends(data)
}

// pngEnds checks the chunks after the signature, up to IEND.
func pngEnds(data []byte) bool {
	const around = 12 // length, type and checksum
	pixels := false
	for data = data[8:]; len(data) >= around; {
		size := int64(binary.BigEndian.Uint32(data))
		if size > int64(len(data)-around) {
			return false
		}
		chunk := data[4 : 8+size]
		if crc32.ChecksumIEEE(chunk) != binary.BigEndian.Uint32(data[8+size:]) {
			return false
		}
		switch string(chunk[:4]) {
		case "IDAT":
			pixels = true
		case "IEND":
			return pixels
		}
		data = data[around+size:]
	}
	return false
}

// jpegEnds checks the segments, and goes over the compressed data between them, up to EOI.
func jpegEnds(data []byte) bool {
	const (
		startOfScan = 0xda
		endOfImage  = 0xd9
	)
	scanned := false
	for at := 2; at+1 < len(data); {
		if data[at] != 0xff {
			if !scanned {
				return false // between segments there is nothing
			}
			at++
			continue
		}
		switch kind := data[at+1]; {
		case kind == endOfImage:
			return scanned
		case kind == 0xff: // padding
			at++
		case kind == 0 && !scanned:
			return false
		case kind <= 1 || kind >= 0xd0 && kind <= 0xd7: // compressed data, and markers without a length
			at += 2
		case at+4 > len(data):
			return false
		default:
			scanned = scanned || kind == startOfScan
			at += 2 + int(binary.BigEndian.Uint16(data[at+2:]))
		}
	}
	return false
}

// gifEnds checks the blocks after the screen's descriptor, up to the trailer.
func gifEnds(data []byte) bool {
	const header, descriptor = 13, 10
	if len(data) < header {
		return false
	}
	shown := false
	for at := header + colors(data[10]); at < len(data); {
		switch data[at] {
		case ';':
			return shown
		case '!':
			at += 2
		case ',':
			if at+descriptor > len(data) {
				return false
			}
			shown = true
			at += descriptor + colors(data[at+9]) + 1
		default:
			return false
		}
		for at < len(data) && data[at] != 0 {
			at += 1 + int(data[at])
		}
		at++
	}
	return false
}

// colors returns the size of the table of colors that a GIF's flags announce.
func colors(flags byte) int {
	if flags&0x80 == 0 {
		return 0
	}
	return 3 << (flags&7 + 1)
}

// webpEnds checks that the data is as long as its RIFF header says.
func webpEnds(data []byte) bool {
	return 8+int64(binary.LittleEndian.Uint32(data[4:])) <= int64(len(data))
}
