package credential

import (
	"errors"
	"net/http"
	"net/textproto"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/http/httpguts"

	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/policy"
)

// Bounds of a credential, in entries and in bytes.
const (
	maxHosts   = 32
	maxMethods = 32
	maxPaths   = 64
	maxUsers   = 1000
	maxText    = 1 << 10 // of a name, a template or a path
	maxValue   = 16 << 10
)

var (
	queryPattern    = regexp.MustCompile(`^[A-Za-z0-9._~-]{1,128}$`)
	variablePattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)
)

// CheckName returns what is wrong with the name of a credential.
func CheckName(name string) error { return policy.CheckSecretName(name) }

// Validate returns what is wrong with a credential. All faults come in one error, of class
// ErrInvalidArgument, each with its field and value. Hosts and the name of a header need not be in
// canonical form: Store.Put brings them into it.
func (c Credential) Validate() error {
	faults := []error{CheckName(c.Name)}
	if len(c.Hosts) == 0 {
		faults = append(faults, errs.Invalid("hosts is missing: name the hosts that the value is for"))
	} else {
		faults = append(faults, each("hosts", c.Hosts, maxHosts, checkHost))
	}
	return errors.Join(append(faults, c.Place.validate(),
		each("methods", c.Methods, maxMethods, checkMethod),
		each("paths", c.Paths, maxPaths, checkPath),
		each("users", c.Users, maxUsers, checkUser), checkEnv(c.Env))...)
}

// each checks a list, which is nil or has entries.
func each(field string, list []string, most int, check func(string) error) error {
	switch {
	case list != nil && len(list) == 0:
		return errs.Invalid("%s is empty: leave it out if it does not matter", field)
	case len(list) > most:
		return errs.Invalid("%s has %d entries; at most %d are allowed", field, len(list), most)
	}
	var faults []error
	for i, entry := range list {
		if err := check(entry); err != nil {
			faults = append(faults, errs.Invalid("%s[%d]: %v", field, i, err))
		}
	}
	return errors.Join(faults...)
}

func checkHost(s string) error {
	domain, err := policy.ParseDomain(s)
	if err == nil && domain.String() == "*" {
		err = errs.Invalid("%q is everyone; name the hosts that the value is for", s)
	}
	return err
}

func checkUser(s string) error {
	_, err := ids.ParseUser(s)
	return err
}

func checkMethod(s string) error {
	switch {
	case len(s) > 32 || !httpguts.ValidHeaderFieldName(s): // both are tokens
		return errs.Invalid("%.80q is no method", s)
	case s != strings.ToUpper(s):
		return errs.Invalid("%q is not in upper case; did you mean %q?", s, strings.ToUpper(s))
	case s == http.MethodConnect || s == http.MethodTrace:
		return errs.Invalid("%q has no credentials", s)
	}
	return nil
}

func checkPath(s string) error {
	if len(s) > maxText {
		return errs.Invalid("%.80q has %d bytes; at most %d are allowed", s, len(s), maxText)
	}
	_, ok := decoded(s)
	switch {
	case !strings.HasPrefix(s, "/"):
		return errs.Invalid("%q does not begin with /", s)
	case strings.ContainsAny(s, "?#"):
		return errs.Invalid("%q has a query or a fragment; name the path alone", s)
	case !ok:
		return errs.Invalid(
			"%q matches no request: a path has no . or .. as a segment, no encoded slash, no backslash, no control character and no percent sign once it is decoded",
			s)
	}
	return nil
}

func (p Place) validate() error {
	given := 0
	for _, place := range []string{p.Header, p.Basic, p.Query} {
		if place != "" {
			given++
		}
	}
	switch {
	case given != 1:
		return errs.Invalid(
			"header %.80q, basic %.80q and query %.80q: exactly one says where the value goes",
			p.Header, p.Basic, p.Query)
	case p.Header != "":
		return errors.Join(checkHeader(p.Header), checkTemplate(p.Template))
	case p.Template != "":
		return errs.Invalid("template %.80q is for a header, and there is none", p.Template)
	case p.Basic != "" && (len(p.Basic) > maxText || !utf8.ValidString(p.Basic) ||
		strings.Contains(p.Basic, ":") || strings.ContainsFunc(p.Basic, unicode.IsControl)):
		return errs.Invalid(
			"basic %.80q is no user name: it has no colon and no control character", p.Basic)
	case p.Query != "" && !queryPattern.MatchString(p.Query):
		return errs.Invalid(
			"query %.80q is no parameter: it has letters, digits and . _ ~ -, at most 128", p.Query)
	}
	return nil
}

// ofConnections are headers about a connection or the form of a message, in canonical form: who
// sets one may change what the request is, or to whom.
var ofConnections = []string{"Connection", "Content-Length", "Expect", "Host", "Http2-Settings",
	"Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

func checkHeader(s string) error {
	canonical := textproto.CanonicalMIMEHeaderKey(s)
	switch {
	case len(s) > maxText || !httpguts.ValidHeaderFieldName(s):
		return errs.Invalid("header %.80q is no name of a header", s)
	case slices.Contains(ofConnections, canonical) || strings.HasPrefix(canonical, "Proxy-"):
		return errs.Invalid(
			"header %q is about the connection or the form of the request; no value can be in it", s)
	}
	return nil
}

func checkTemplate(s string) error {
	switch {
	case strings.Count(s, Secret) != 1:
		return errs.Invalid("template %.80q must have %s exactly once, where the value goes", s, Secret)
	case len(s) > maxText || !utf8.ValidString(s) || !isHeaderText(s):
		return errs.Invalid("template %.80q is no text of a header", s)
	}
	return nil
}

// isHeaderText reports whether a header's text arrives as it was sent: blanks around it do not.
func isHeaderText(s string) bool {
	return httpguts.ValidHeaderFieldValue(s) && s == strings.Trim(s, " \t")
}

func checkEnv(s string) error {
	switch {
	case s == "":
		return nil
	case !variablePattern.MatchString(s):
		return errs.Invalid(
			"env %.80q is no variable: it has letters, digits and _, and begins with no digit", s)
	case isReserved(s):
		return errs.Invalid("env %q changes how programs start; take another variable", s)
	}
	return nil
}

// isReserved reports whether shells, the dynamic linker or this service have their own use for a
// variable.
func isReserved(name string) bool {
	switch name {
	case "PATH", "HOME", "SHELL", "ENV", "IFS", "PWD", "USER", "LOGNAME", "TMPDIR":
		return true
	}
	return strings.HasPrefix(name, "LD_") || strings.HasPrefix(name, "BASH")
}

// checkValue returns what is wrong with a value for a place. The error does not have the value.
func (p Place) checkValue(value string) error {
	inPlace := value
	if p.Header != "" {
		inPlace = strings.Replace(p.Template, Secret, value, 1)
	}
	switch {
	case len(value) > maxValue:
		return errs.Invalid("value has %d bytes; at most %d are allowed", len(value), maxValue)
	case strings.ContainsAny(value, "\r\n"):
		return errs.Invalid("value has a line break, which no request can carry; is it at its end?")
	case !httpguts.ValidHeaderFieldValue(value):
		return errs.Invalid("value has a control character, which no request can carry")
	case p.Header != "" && !isHeaderText(inPlace):
		return errs.Invalid("value begins or ends with a blank, which is lost in a header")
	}
	return nil
}
