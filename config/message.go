package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// mostShown is how much of a value a message shows, in bytes before escaping.
const mostShown = 100

// quote writes a value into a message: escaped, so that it stays in its line, and cut, so that it stays
// readable.
func quote(value string) string {
	if len(value) > mostShown {
		return fmt.Sprintf("%q...", value[:mostShown])
	}
	return fmt.Sprintf("%q", value)
}

// unquote needs no error: the decoder has checked the syntax of raw.
func unquote(raw jsontext.Value) string {
	text, _ := jsontext.AppendUnquote(nil, raw)
	return string(text)
}

// brief writes a JSON value into a message, in one line.
func brief(raw jsontext.Value) string {
	if raw.Kind() == '"' {
		return quote(unquote(raw))
	}
	compact := raw.Clone()
	if err := compact.Compact(jsontext.AllowDuplicateNames(true)); err != nil {
		return quote(raw.String())
	}
	if len(compact) > mostShown {
		return strings.ToValidUTF8(string(compact[:mostShown]), "") + "..."
	}
	return compact.String()
}

// syntax returns the place of an error of syntax, and what it is without the decoder's own words for
// the place.
func syntax(data []byte, err error) (place, says string) {
	offset := int64(len(data))
	if s, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		offset, err = s.ByteOffset, s.Err
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return position(data, offset), "the JSON ends too early"
	}
	return position(data, offset), fmt.Sprintf("cannot be read as JSON: %v", err)
}

func position(data []byte, offset int64) string {
	before := data[:min(offset, int64(len(data)))]
	line := bytes.Count(before, []byte("\n")) + 1
	column := len(before) - bytes.LastIndexByte(before, '\n')
	return fmt.Sprintf("line %d, column %d", line, column)
}

var plainKey = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// printable returns a key as it may stand in a path.
func printable(key string) string {
	if plainKey.MatchString(key) {
		return key
	}
	return quote(key)
}

// nearest returns " (did you mean x?)" for the known name that is nearest to name, or "" when none is
// near.
func nearest(name string, known []string) string {
	// More than a third of the letters wrong is a different word.
	best, least := "", min(len(name)/3+1, 4)
	for _, k := range known {
		if max(len(k)-len(name), len(name)-len(k)) >= least {
			continue
		}
		if d := distance(strings.ToLower(name), strings.ToLower(k)); d < least {
			best, least = k, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(" (did you mean %s?)", best)
}

// distance is the number of letters to insert, delete or replace to make b of a (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
