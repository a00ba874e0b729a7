package api

import (
	"slices"
	"unicode/utf8"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/utf8cut"
)

// kept collects an output as it comes, and keeps its two ends, each of half of limit bytes: of a
// long log, the errors are at the end.
type kept struct {
	limit int64
	head  []byte
	tail  []byte // up to twice as much as is kept
	total int64
}

func (k *kept) room() (head, tail int) { return int(k.limit - k.limit/2), int(k.limit / 2) }

func (k *kept) Write(p []byte) (int, error) {
	n := len(p)
	head, tail := k.room()
	k.total += int64(n)
	room := min(head-len(k.head), len(p))
	k.head, p = append(k.head, p[:room]...), p[room:]
	if skip := len(p) - tail; skip > 0 {
		k.tail, p = k.tail[:0], p[skip:]
	}
	k.tail = append(k.tail, p...)
	if len(k.tail) > 2*tail {
		k.tail = append(k.tail[:0], k.tail[len(k.tail)-tail:]...)
	}
	return n, nil
}

// encoded returns what is kept, and where what is left out belongs; nil if nothing is. A character
// of which only a part is kept is left out, unless the output is no text.
func (k *kept) encoded() (string, types.Encoding, *types.Cut) {
	_, limit := k.room()
	head, tail := k.head, k.tail[max(0, len(k.tail)-limit):]
	if int64(len(head)+len(tail)) == k.total {
		text, encoding := encodePart(slices.Concat(head, tail))
		return text, encoding, nil
	}
	wholeHead, wholeTail := head[:utf8cut.Whole(head)], utf8cut.Begin(tail)
	if utf8.Valid(wholeHead) && utf8.Valid(wholeTail) {
		head, tail = wholeHead, wholeTail
	}
	text, encoding := encodePart(slices.Concat(head, tail))
	return text, encoding, &types.Cut{At: int64(len(head)),
		Bytes: k.total - int64(len(head)+len(tail))}
}

// all returns the cut that leaves everything out; nil if there is nothing.
func (k *kept) all() *types.Cut {
	if k.total == 0 {
		return nil
	}
	return &types.Cut{Bytes: k.total}
}
