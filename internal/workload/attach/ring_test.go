package attach

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"unicode/utf8"

	"github.com/daycare-run/sandbox/dockerexec/session"
)

// TestRing writes pieces of random lengths and streams, and after each reads from random positions.
func TestRing(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var r ring
	var all []byte // bytes of stdout are even, of stderr odd
	for range 400 {
		stream := session.Stream(random.IntN(2))
		piece := make([]byte, random.IntN(20<<10))
		for i := range piece {
			piece[i] = byte(random.Uint32())&^1 | byte(stream)
		}
		r.write(stream, piece)
		all = append(all, piece...)
		if r.end() != int64(len(all)) || r.end()-r.tail.start() < min(r.end(), Kept) || len(r.tail.data) > Kept+Kept/2+20<<10 {
			t.Fatalf("%d of %d bytes are kept, from %d", len(r.tail.data), len(all), r.tail.start())
		}
		if r.kept(0) != 0 || len(r.head.data) > KeptHead || r.tail.start() > 0 && len(r.head.data) <= KeptHead-utf8.UTFMax {
			t.Fatalf("%d bytes of the head are kept", len(r.head.data))
		}
		at := random.Int64N(r.end() + 1)
		from := r.kept(at)
		if from != at && (at < int64(len(r.head.data)) || from != r.tail.start()) {
			t.Fatalf("after %d, what is kept begins at %d", at, from)
		}
		if from == r.end() {
			continue
		}
		stream, got := r.read(from, 1000)
		if len(got) > 1000 || len(got) == 0 {
			t.Fatalf("%d bytes at %d", len(got), from)
		}
		if !bytes.Equal(got, all[from:from+int64(len(got))]) {
			t.Fatalf("other bytes at %d", from)
		}
		for _, b := range got {
			if b&1 != byte(stream) {
				t.Fatalf("a byte of the other stream at %d", from)
			}
		}
	}
}

// Output that changes its stream with each byte takes no more memory than any other output, and an attached
// caller still has room to be behind.
func TestRingOfManyRuns(t *testing.T) {
	var r ring
	for i := range 10 * maxRuns {
		if len(r.tail.runs) == maxRuns && !r.keeps(r.end()-maxRuns/4) {
			t.Fatal("a caller who is not far behind is not waited for")
		}
		r.write(session.Stream(i%2), []byte{byte(i)})
		if len(r.tail.runs) > maxRuns || len(r.head.runs) > maxRuns {
			t.Fatalf("%d and %d runs", len(r.head.runs), len(r.tail.runs))
		}
	}
	if r.keeps(r.end() - maxRuns/2) {
		t.Error("what a caller has not seen would be forgotten")
	}
	last := r.head.end - 1
	for _, at := range []int64{0, last, r.kept(last + 1)} {
		if stream, data := r.read(at, 10); len(data) != 1 || data[0] != byte(at) || stream != session.Stream(at%2) {
			t.Errorf("%v at %d", data, at)
		}
	}
}

// Of output that changes its stream all the time, the papers promise so many pieces of each end.
func TestManyPiecesOfBothEndsAreKept(t *testing.T) {
	const promised, piece = 8192, 5
	var r ring
	for i := range int64(5 * maxRuns) {
		r.write(session.Stream(i%2), []byte("line\n"))
		if first := min(r.end(), promised*piece); r.kept(0) != 0 || r.tail.start() > 0 && r.head.end < first {
			t.Fatalf("after %d, %d bytes of the first pieces are kept", i, r.head.end)
		}
		if last := max(r.end()-promised*piece, 0); r.tail.start() > last {
			t.Fatalf("after %d, what is kept begins at %d, want %d", i, r.tail.start(), last)
		}
	}
	if r.head.end >= KeptHead || r.end()-r.tail.start() >= Kept {
		t.Errorf("this does not test pieces: %d and %d bytes are kept", r.head.end, r.end()-r.tail.start())
	}
}

// The head ends with a whole character, and what is kept after it begins with one.
func TestRingKeepsCharactersWhole(t *testing.T) {
	for shift := range 7 {
		var r ring
		r.write(session.Stdout, bytes.Repeat([]byte("x"), shift))
		r.write(session.Stdout, bytes.Repeat([]byte("€😀"), (Kept+Kept/2)/7))
		r.write(session.Stdout, bytes.Repeat([]byte("x"), 7)) // makes it forget
		if at := r.kept(r.head.end); at == r.head.end || !utf8.Valid(r.head.data) || !utf8.RuneStart(r.tail.data[0]) {
			t.Errorf("shifted by %d, characters are cut: %x, %x", shift, r.head.data[len(r.head.data)-8:], r.tail.data[:8])
		}
	}
}
