package config

import "bytes"

// withoutComments returns data with spaces where comments were, so that what is left keeps its lines and
// columns. A comment is // with the rest of its line; inside a string it is none. JSON has no other use
// for a / outside of strings, so nothing else changes.
func withoutComments(data []byte) []byte {
	clean := bytes.Clone(data)
	inString, inComment := false, false
	for i := 0; i < len(clean); i++ {
		switch c := clean[i]; {
		case inComment && c == '\n':
			inComment = false
		case inComment:
			clean[i] = ' '
		case inString && c == '\\':
			i++ // what is escaped ends no string
		case c == '"':
			inString = !inString
		case !inString && bytes.HasPrefix(clean[i:], []byte("//")):
			inComment = true
			clean[i] = ' '
		}
	}
	return clean
}
