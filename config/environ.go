package config

import (
	"errors"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/caarlos0/env/v10"
	"github.com/go-json-experiment/json/jsontext"
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
		if bad := assign(c, f, environ[variable]); len(bad) > 0 {
			wrong = append(wrong, bad...)
			continue
		}
		set[f.key] = variable
	}
	return set, wrong
}

// assign sets one field of c from its variable, or returns what is wrong with the value. The parser's
// errors name Go's fields, so it gets one variable at a time.
func assign(c *Config, f field, value string) faults {
	switch {
	case value == "":
		return assignEmpty(f)
	case f.value.Kind() == reflect.Map:
		return assignObject(f, value)
	}
	err := env.ParseWithOptions(c, env.Options{
		Prefix:      prefix,
		Environment: map[string]string{f.variable: value},
		FuncMap: map[reflect.Type]env.ParserFunc{
			reflect.TypeFor[[]string](): func(value string) (any, error) { return splitList(value), nil },
			reflect.TypeFor[[]int]():    splitNumbers,
			reflect.TypeFor[int]():      func(value string) (any, error) { return strconv.Atoi(value) }, // its own has 32 bits
		},
	})
	if err == nil {
		return nil
	}
	if parse, ok := parseError(err); ok && f.text() != nil {
		return faults{{f.variable, quote(value) + " " + parse.Err.Error()}}
	}
	return mistyped(f, value)
}

func mistyped(f field, value string) faults {
	return faults{{f.variable, "want " + f.wants() + ", got " + quote(value)}}
}

// assignEmpty is for the empty value, which the parser takes for an absent one.
func assignEmpty(f field) faults {
	switch {
	case f.text() == nil && f.value.Kind() == reflect.String:
		f.value.SetString("")
	case f.value.Kind() == reflect.Slice:
		f.value.Set(reflect.MakeSlice(f.value.Type(), 0, 0))
	default:
		return mistyped(f, "")
	}
	return nil
}

// assignObject is for what a variable holds as JSON. The field keeps its value when anything is wrong.
func assignObject(f field, value string) faults {
	raw := jsontext.Value(value)
	if raw.Kind() != '{' || !raw.IsValid(jsontext.AllowDuplicateNames(true)) {
		return mistyped(f, value)
	}
	read := f
	read.value = reflect.New(f.value.Type()).Elem()
	d := &decoder{refused: make(map[string]bool)}
	d.set(read, raw)
	for i := range d.faults {
		d.faults[i].key += " (" + f.variable + ")"
	}
	if len(d.faults) == 0 {
		f.value.Set(read.value)
	}
	return d.faults
}

func splitList(value string) []string {
	list := strings.Split(value, ",")
	for i := range list {
		list[i] = strings.TrimSpace(list[i])
	}
	return list
}

func splitNumbers(value string) (any, error) {
	var list []int
	for _, item := range splitList(value) {
		n, err := strconv.Atoi(item)
		if err != nil {
			return nil, err
		}
		list = append(list, n)
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
