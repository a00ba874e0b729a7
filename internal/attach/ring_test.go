package attach

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"unicode/utf8"

	"github.com/daycare-run/sandbox/dockerexec"
)

// TestRing writes pieces of random lengths and streams, and after each reads from random positions.
func TestRing(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var r ring
	var all []byte // bytes of stdout are even, of stderr odd
	for range 400 {
		stream := dockerexec.Stream(random.IntN(2))
		piece := make([]byte, random.IntN(20<<10))
		for i := range piece {
			piece[i] = byte(random.Uint32())&^1 | byte(stream)
		}
		r.write(stream, piece)
		all = append(all, piece...)
		if r.end != int64(len(all)) || r.end-r.start() < min(r.end, Kept) || len(r.data) > Kept+Kept/2+20<<10 {
			t.Fatalf("%d of %d bytes are kept, from %d", len(r.data), len(all), r.start())
		}
		at := random.Int64N(r.end + 1)
		stream, got, from := r.read(at, 1000)
		if from != max(at, r.start()) || len(got) > 1000 || (len(got) == 0) != (from == r.end) {
			t.Fatalf("from %d there are %d bytes at %d", at, len(got), from)
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
		if len(r.runs) == maxRuns && !r.keeps(r.end-maxRuns/4) {
			t.Fatal("a caller who is not far behind is not waited for")
		}
		r.write(dockerexec.Stream(i%2), []byte{byte(i)})
		if len(r.runs) > maxRuns {
			t.Fatalf("%d runs", len(r.runs))
		}
	}
	if r.keeps(r.end - maxRuns/2) {
		t.Error("what a caller has not seen would be forgotten")
	}
	before := r.start()
	_, data, from := r.read(0, 10)
	if from != before || len(data) != 1 || data[0] != byte(from) {
		t.Errorf("%v at %d", data, from)
	}
}

// What is kept begins with a whole character.
func TestRingKeepsCharactersWhole(t *testing.T) {
	for shift := range 7 {
		var r ring
		r.write(dockerexec.Stdout, bytes.Repeat([]byte("€😀"), (Kept+Kept/2)/7))
		r.write(dockerexec.Stdout, bytes.Repeat([]byte("x"), 7+shift)) // makes it forget
		if _, data, from := r.read(0, 1000); from == 0 || !utf8.RuneStart(data[0]) {
			t.Errorf("shifted by %d, it begins in a character: %x", shift, data[:8])
		}
	}
}
