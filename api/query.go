package api

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	cerrdefs "github.com/containerd/errdefs"
	"golang.org/x/net/idna"

	"github.com/daycare-run/sandbox/internal/credential"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/ids"
)

// query reads parameters, each of which may occur once. A missing parameter is not in the map.
func query(req *http.Request, known ...string) (map[string]string, error) {
	given, err := url.ParseQuery(req.URL.RawQuery)
	if err != nil {
		return nil, fmt.Errorf("the query cannot be read: %v: %w", err, cerrdefs.ErrInvalidArgument)
	}
	values := map[string]string{}
	for _, name := range known {
		if list := given[name]; len(list) > 1 {
			return nil, fmt.Errorf("parameter %s is given %d times: %w", name, len(list),
				cerrdefs.ErrInvalidArgument)
		} else if len(list) == 1 {
			values[name] = list[0]
		}
		delete(given, name)
	}
	for name := range given {
		return nil, fmt.Errorf("unknown parameter %.200q; there are %s: %w", name,
			strings.Join(known, ", "), cerrdefs.ErrInvalidArgument)
	}
	return values, nil
}

// fileQuery reads parameters, one of which has to be path.
func fileQuery(req *http.Request, known ...string) (map[string]string, error) {
	values, err := query(req, known...)
	if err == nil && values["path"] == "" {
		err = fmt.Errorf("the parameter path is missing or empty: %w", cerrdefs.ErrInvalidArgument)
	}
	return values, err
}

// boolean returns a parameter, or false if it is missing.
func boolean(values map[string]string, name string) (bool, error) {
	value, given := values[name]
	if given && value != "true" && value != "false" {
		return false, unreadable(name, value, "neither true nor false")
	}
	return value == "true", nil
}

// number returns a parameter, or otherwise if it is missing.
func number(values map[string]string, name string, otherwise, low, high int64) (int64, error) {
	value, given := values[name]
	if !given {
		return otherwise, nil
	}
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil || n < low || n > high {
		return 0, unreadable(name, value, fmt.Sprintf("not a number from %d to %d", low, high))
	}
	return n, nil
}

// unreadable is the error for an invalid parameter.
func unreadable(name, value, what string) error {
	return fmt.Errorf("%s %.200q is %s: %w", name, value, what, cerrdefs.ErrInvalidArgument)
}

// decisionQuery is what GET /v1/egress/decisions asks for.
type decisionQuery struct {
	filter decisions.Filter
	limit  int64
	follow bool
}

// How many decisions an answer has.
const (
	defaultDecisions = 100
	maxDecisions     = 10_000
)

// decisionParameters are listed in the order in which they are checked.
var decisionParameters = []struct {
	name string
	read func(q *decisionQuery, name, value string) error
}{
	{"userId", func(q *decisionQuery, _, value string) error {
		user, err := ids.ParseUser(value)
		q.filter.User = user.String()
		return err
	}},
	{"container", func(q *decisionQuery, name, value string) error {
		if !containerName.MatchString(value) {
			return unreadable(name, value, "not the name of a container")
		}
		q.filter.Container = value
		return nil
	}},
	{"verdict", func(q *decisionQuery, name, value string) (err error) {
		q.filter.Verdict, err = oneOf(name, value, verdicts)
		return err
	}},
	{"via", func(q *decisionQuery, name, value string) (err error) {
		if of, is := strings.CutPrefix(value, string(decisions.Credential(""))); is && credential.CheckName(of) == nil {
			q.filter.Via = decisions.Via(value)
			return nil
		}
		q.filter.Via, err = oneOf(name, value, vias)
		return err
	}},
	{"name", func(q *decisionQuery, name, value string) (err error) {
		q.filter.Name, err = hostName(name, value)
		return err
	}},
	{"after", func(q *decisionQuery, name, value string) (err error) {
		if q.filter.After, err = strconv.ParseUint(value, 10, 64); err != nil {
			return unreadable(name, value, "not the number of a decision")
		}
		return nil
	}},
	{"since", func(q *decisionQuery, name, value string) error {
		if err := q.filter.Since.UnmarshalText([]byte(value)); err != nil {
			return unreadable(name, value,
				"not a time as in RFC 3339, such as "+time.DateOnly+"T"+time.TimeOnly+
					"Z, where a + is written %2B")
		}
		return nil
	}},
}

var (
	verdicts = []decisions.Verdict{decisions.Allowed, decisions.Denied, decisions.Failed,
		decisions.Limited, decisions.Malformed}
	vias = []decisions.Via{decisions.DNS, decisions.TLS, decisions.HTTP, decisions.TCP,
		decisions.UDP}
)

func readDecisionQuery(req *http.Request) (decisionQuery, error) {
	var known []string
	for _, p := range decisionParameters {
		known = append(known, p.name)
	}
	values, err := query(req, append(known, "limit", "follow")...)
	if err != nil {
		return decisionQuery{}, err
	}
	var q decisionQuery
	for _, p := range decisionParameters {
		value, given := values[p.name]
		if !given {
			continue
		}
		if err := p.read(&q, p.name, value); err != nil {
			return decisionQuery{}, err
		}
	}
	if q.limit, err = number(values, "limit", defaultDecisions, 0, maxDecisions); err != nil {
		return decisionQuery{}, err
	}
	q.follow, err = boolean(values, "follow")
	return q, err
}

func oneOf[Word ~string](name, value string, known []Word) (Word, error) {
	var list []string
	for _, word := range known {
		if value == string(word) {
			return word, nil
		}
		list = append(list, string(word))
	}
	return "", unreadable(name, value, "not one of "+strings.Join(list, ", "))
}

var (
	containerName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,254}$`)
	// Names that programs look up may have underscores.
	askedName  = regexp.MustCompile(`^[a-z0-9_-]+(\.[a-z0-9_-]+)*$`)
	askedNames = idna.New(idna.MapForLookup(), idna.CheckHyphens(false),
		idna.StrictDomainName(false))
)

// hostName converts a name as people write it to the form that decisions use.
func hostName(parameter, value string) (string, error) {
	name := strings.ToLower(strings.TrimSuffix(value, "."))
	var fault error
	if strings.ContainsFunc(name, func(r rune) bool { return r >= utf8.RuneSelf }) {
		name, fault = askedNames.ToASCII(name)
	}
	if fault != nil || len(name) > 253 || !askedName.MatchString(name) {
		return "", unreadable(parameter, value,
			"no host name; one matches itself and all names below it, without a wildcard")
	}
	return name, nil
}
