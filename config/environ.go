package config

import (
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/caarlos0/env/v10"
)

// prefix is what the names of all our variables begin with.
const prefix = "SANDBOXD_"

// override sets in c what environ says. It returns the variable of each key that environ sets, and
// the variables that set nothing.
func override(c *Config, environ map[string]string) (map[string]string, faults) {
	known := make(map[string]field)
	for _, f := range settings(c) {
		known[f.variable] = f
	}
	names := slices.Sorted(maps.Keys(known))
	set := make(map[string]string)
	var wrong faults
	for _, variable := range slices.Sorted(maps.Keys(environ)) {
		if !strings.HasPrefix(variable, prefix) {
			continue
		}
		f, ok := known[variable]
		if !ok {
			wrong.add(printable(variable), "unknown variable%s", nearest(variable, names))
			continue
		}
		value := environ[variable]
		if says := assign(c, f, value); says != "" {
			wrong.add(variable, "%s", says)
			continue
		}
		set[f.key] = variable
	}
	return set, wrong
}

// assign sets one field of c from its variable, and returns what is wrong with the value or "". The
// parser's errors name Go's fields, so it gets one variable at a time.
func assign(c *Config, f field, value string) string {
	if value == "" {
		return assignEmpty(f)
	}
	err := env.ParseWithOptions(c, env.Options{
		Prefix:      prefix,
		Environment: map[string]string{f.variable: value},
		FuncMap:     map[reflect.Type]env.ParserFunc{reflect.TypeFor[[]string](): splitList},
	})
	if err == nil {
		return ""
	}
	if parse, ok := parseError(err); ok && f.text() != nil {
		return quote(value) + " " + parse.Err.Error()
	}
	return "want " + f.wants() + ", got " + quote(value)
}

// assignEmpty is for the empty value, which the parser takes for an absent one.
func assignEmpty(f field) string {
	switch {
	case f.text() == nil && f.value.Kind() == reflect.String:
		f.value.SetString("")
	case f.value.Kind() == reflect.Slice:
		f.value.Set(reflect.ValueOf([]string{}))
	default:
		return `want ` + f.wants() + `, got ""`
	}
	return ""
}

func splitList(value string) (any, error) {
	list := strings.Split(value, ",")
	for i := range list {
		list[i] = strings.TrimSpace(list[i])
	}
	return list, nil
}

// parseError finds the first ParseError of an AggregateError, which does not unwrap.
func parseError(err error) (env.ParseError, bool) {
	all, ok := errors.AsType[env.AggregateError](err)
	if !ok || len(all.Errors) == 0 {
		return env.ParseError{}, false
	}
	return errors.AsType[env.ParseError](all.Errors[0])
}
