// Package utf8cut cuts texts between characters, never in one.
package utf8cut

import "unicode/utf8"

// Head returns the first characters of a text, at most so many bytes. What is not UTF-8 is cut
// anywhere.
func Head(text []byte, limit int) []byte {
	if len(text) <= limit {
		return text
	}
	return text[:Whole(text[:limit])]
}

// Tail returns the last characters of a text, at most so many bytes.
func Tail(text []byte, limit int) []byte {
	if len(text) <= limit {
		return text
	}
	return Begin(text[len(text)-limit:])
}

// Begin returns a text without the rest of a character whose beginning is missing.
func Begin(text []byte) []byte {
	for rest := range utf8.UTFMax {
		if rest == len(text) || utf8.RuneStart(text[rest]) {
			return text[rest:]
		}
	}
	return text // it is not UTF-8
}

// Back returns where the character begins that a text has at a place.
func Back(text []byte, at int) int {
	for begin := at; begin >= 0 && begin < len(text) && at-begin < utf8.UTFMax; begin-- {
		if utf8.RuneStart(text[begin]) {
			return begin
		}
	}
	return at // it is not UTF-8
}

// Whole returns how many bytes of a text precede a character that is cut off at the end.
func Whole(text []byte) int {
	for back := 1; back < utf8.UTFMax && back <= len(text); back++ {
		start := len(text) - back
		if utf8.RuneStart(text[start]) {
			if !utf8.FullRune(text[start:]) {
				return start
			}
			break
		}
	}
	return len(text)
}
