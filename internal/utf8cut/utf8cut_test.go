package utf8cut_test

import (
	"testing"
	"unicode/utf8"

	"github.com/daycare-run/sandbox/internal/utf8cut"
)

func TestCuts(t *testing.T) {
	const text = "aé€😀zé"
	for most := range len(text) + 2 {
		head, tail := utf8cut.Head([]byte(text), most), utf8cut.Tail([]byte(text), most)
		for _, part := range [][]byte{head, tail} {
			if !utf8.Valid(part) || len(part) > most || len(part) < min(most, len(text))-3 {
				t.Errorf("%d: %q", most, part)
			}
		}
	}
	for in, want := range map[string]string{"": "", "a": "a", "\xa9b": "b", "\x98\x80": "", "\x80\x80\x80\x80a": "\x80\x80\x80\x80a", "\xffa": "\xffa"} {
		if got := utf8cut.Begin([]byte(in)); string(got) != want {
			t.Errorf("%q begins as %q, want %q", in, got, want)
		}
	}
	for at, want := range []int{0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 11, 11, 13} {
		if got := utf8cut.Back([]byte(text), at); got != want {
			t.Errorf("%d is in the character at %d, want %d", at, got, want)
		}
	}
	if got := utf8cut.Back([]byte("\x80\x80\x80\x80\x80"), 4); got != 4 {
		t.Error(got)
	}
	for in, want := range map[string]int{"": 0, "a": 1, "a\xc3": 1, "a\xe2\x82": 1, "a\xf0\x9f\x98": 1, "a\xff": 2, "a\x80": 2} {
		if got := utf8cut.Whole([]byte(in)); got != want {
			t.Errorf("%q: %d, want %d", in, got, want)
		}
	}
}
