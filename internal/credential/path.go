package credential

import (
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"
)

// decoded decodes a path once. It refuses paths that a server may take for other ones than those
// that they look like: what that server decodes again, or takes for a separator, or resolves.
func decoded(path string) (text string, ok bool) {
	text, err := url.PathUnescape(path)
	if err != nil || !strings.HasPrefix(path, "/") || !utf8.ValidString(text) ||
		strings.Count(text, "/") > strings.Count(path, "/") || // one was encoded
		strings.ContainsFunc(text, isAmbiguous) {
		return "", false
	}
	for segment := range strings.SplitSeq(text, "/") {
		name, _, _ := strings.Cut(segment, ";") // some servers drop parameters before they resolve
		if name == "." || name == ".." {
			return "", false
		}
	}
	return text, true
}

// isAmbiguous reports whether a decoded path with this rune may be another path: a percent sign may
// be decoded again.
func isAmbiguous(r rune) bool { return r == '%' || r == '\\' || unicode.IsControl(r) }

// below reports whether a decoded path is at or below a prefix of whole segments, which is encoded.
func below(asked, prefix string) bool {
	prefix, ok := decoded(prefix)
	rest, begins := strings.CutPrefix(asked, prefix)
	return ok && begins && (rest == "" || rest[0] == '/' || strings.HasSuffix(prefix, "/"))
}
