package guard

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/daycare-run/sandbox/internal/credential"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
)

// put is a credential that is put into a request.
type put struct {
	credential.Credential
	value string
}

// placeholders finds what stands for credentials inside containers.
var placeholders = regexp.MustCompile(`daycare-secret-[0-9a-f]{32}`)

// putsFor returns what is put into a request to a name that is allowed. A placeholder that would go
// where its credential is not for is refused: it is worth nothing, but somebody has tried.
func (s *httpSession) putsFor(r *http.Request, name string) ([]put, *refusal) {
	if len(s.who.Secrets()) == 0 {
		return nil, nil
	}
	var puts []put
	if read := s.read.Load(); read != nil {
		read.use(s.credentials(name)) // before they are looked up: whatever is taken away now ends the connection
		for _, c := range s.credentials(name) {
			if !read.uses(c.Name) || !c.Matches(r.Method, r.URL.EscapedPath()) {
				continue
			}
			if slices.ContainsFunc(puts, func(p put) bool { return samePlace(p.Place, c.Place) }) {
				return nil, &refusal{verdict: decisions.Denied, reason: reasonAmbiguous}
			}
			puts = append(puts, put{Credential: c})
		}
	}
	for _, found := range placeholdersIn(r) {
		if !slices.ContainsFunc(puts, func(p put) bool { return p.Placeholder == found }) {
			return nil, &refusal{verdict: decisions.Denied, reason: reasonPlaceholder}
		}
	}
	for i := range puts {
		value, err := s.guard.cfg.Secrets.Value(puts[i].Credential)
		if err != nil {
			s.guard.cfg.Logger.Error().Err(err).Str("credential", puts[i].Name).Msg("cannot open a credential")
			return nil, &refusal{verdict: decisions.Failed, reason: reasonSealed}
		}
		puts[i].value = value
	}
	if len(puts) > 0 {
		s.read.Load().got(puts)
	}
	return puts, nil
}

// placeholdersIn returns the placeholders in a request's target and fields, and in what Basic
// authentication has encoded.
func placeholdersIn(r *http.Request) []string {
	found := placeholders.FindAllString(r.RequestURI, -1)
	for _, values := range r.Header {
		for _, value := range values {
			found = append(found, placeholders.FindAllString(value, -1)...)
		}
	}
	if user, password, is := r.BasicAuth(); is {
		found = append(found, placeholders.FindAllString(user+" "+password, -1)...)
	}
	return found
}

func samePlace(a, b credential.Place) bool { return place(a) == place(b) }

// place returns what a credential is put into: a field, or a parameter.
func place(p credential.Place) string {
	switch {
	case p.Query != "":
		return "?" + p.Query
	case p.Basic != "":
		return "Authorization"
	}
	return http.CanonicalHeaderKey(p.Header)
}

// into puts the credential into a request. Where its field is one text with the placeholder once,
// that is replaced, so that a client may use a scheme of its own; anything else there gives way.
func (p put) into(r *http.Request) {
	switch {
	case p.Place.Query != "":
		r.URL.RawQuery = withParameter(r.URL.RawQuery, p.Place.Query, p.value)
	case p.Place.Basic != "":
		r.SetBasicAuth(p.Place.Basic, p.value)
	default:
		text, stands := p.Place.Template, credential.Secret
		if values := r.Header.Values(p.Place.Header); len(values) == 1 && strings.Count(values[0], p.Placeholder) == 1 {
			text, stands = values[0], p.Placeholder
		}
		r.Header.Set(p.Place.Header, strings.Replace(text, stands, p.value, 1))
	}
}

// withParameter sets a parameter of a query, and leaves the others as they are.
func withParameter(query, name, value string) string {
	pairs := slices.DeleteFunc(strings.Split(query, "&"), func(pair string) bool {
		key, _, _ := strings.Cut(pair, "=")
		key, err := url.QueryUnescape(key)
		return pair == "" || err == nil && key == name
	})
	return strings.Join(append(pairs, url.QueryEscape(name)+"="+url.QueryEscape(value)), "&")
}

// redact replaces a credential in the fields of an answer, where an origin echoes it.
func (p put) redact(fields http.Header) {
	for _, values := range fields {
		for i := range values {
			for _, text := range p.forms() {
				values[i] = strings.ReplaceAll(values[i], text, p.Placeholder)
			}
		}
	}
}

// forms are the ways in which servers write the value.
func (p put) forms() []string {
	forms := []string{p.value}
	for _, escaped := range []string{url.QueryEscape(p.value), url.PathEscape(p.value)} {
		escaped = strings.ReplaceAll(escaped, "+", "%20")
		forms = append(forms, escaped, strings.ReplaceAll(escaped, "%2F", "/"), escapes.ReplaceAllStringFunc(escaped, strings.ToLower))
	}
	forms = append(forms, url.QueryEscape(p.value))
	if p.Place.Basic != "" {
		forms = append(forms, base64.StdEncoding.EncodeToString([]byte(p.Place.Basic+":"+p.value)))
	}
	return forms
}

var escapes = regexp.MustCompile("%[0-9A-F]{2}")

// requestText says what was asked of an origin, for people: method, path and status. Queries are
// left out, for they may have secrets.
func requestText(r *http.Request) string {
	path := r.URL.EscapedPath()
	if len(path) > maxPathShown {
		path = path[:maxPathShown] + "…"
	}
	method := r.Method
	if !isMethod(method) {
		method = "?" // as long as a head may be, and with spaces
	}
	return method + " " + path
}

const maxPathShown = 200
