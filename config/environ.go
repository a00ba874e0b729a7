package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/caarlos0/env/v10"

	"github.com/daycare-run/sandbox/internal/strictjson"
)

// prefix begins the names of all our variables.
const prefix = "SANDBOXD_"

// emptyText stands for a variable's empty value, because the parser takes an empty variable for one
// that is not set. No variable can hold a NUL.
const emptyText = "\x00"

// override sets the values of environ in c. It returns the variable of each key that environ sets,
// and the faults of variables that are unknown or cannot be used.
func override(c *Config, environ map[string]string) (map[string]string, strictjson.Faults) {
	key := map[string]string{}
	present := map[string]string{} // of former variables
	for _, f := range settings(c) {
		key[f.variable] = f.key
		if f.former != "" {
			present[variableOf(f.former)] = f.variable
		}
	}
	var wrong strictjson.Faults
	given, set := map[string]string{}, map[string]string{}
	for _, variable := range slices.Sorted(maps.Keys(environ)) {
		now := present[variable]
		_, both := environ[now]
		switch _, known := key[variable]; {
		case now != "" && both:
			wrong.Add(strictjson.Path("", variable), "is now called %s, which is set, too", now)
		case now != "":
			given[now], set[key[now]] = cmp.Or(environ[variable], emptyText), variable
		case known:
			given[variable], set[key[variable]] = cmp.Or(environ[variable], emptyText), variable
		case strings.HasPrefix(variable, prefix):
			wrong.Add(strictjson.Path("", variable), "unknown variable%s",
				strictjson.Nearest(variable, slices.Sorted(maps.Keys(key))))
		}
	}
	p := parsers{types: map[reflect.Type]env.ParserFunc{}, key: key}
	p.all()
	err := env.ParseWithOptions(c,
		env.Options{Prefix: prefix, Environment: given, FuncMap: p.types,
			OnSet: func(variable string, _ any, _ bool) {
				p.variable = variable
			}})
	all, _ := errors.AsType[env.AggregateError](err)
	for _, err := range all.Errors {
		parse, _ := errors.AsType[env.ParseError](err)
		f, ok := errors.AsType[refused](parse.Err)
		if !ok {
			f = refused{Faults: strictjson.Faults{{Field: "the environment", Says: err.Error()}}}
		}
		delete(set, key[f.variable])
		wrong = append(wrong, f.Faults...)
	}
	return set, wrong
}

// refused has the faults of a variable's value.
type refused struct {
	variable string
	strictjson.Faults
}

// parsers read the values of variables. The env package's own errors name Go fields; these name the
// variable that is being parsed.
type parsers struct {
	types    map[reflect.Type]env.ParserFunc
	key      map[string]string // of each variable
	variable string
}

func (p *parsers) all() {
	parse(p, func(text string) (string, error) { return text, nil })
	parse(p, strconv.ParseBool)
	parse(p, strconv.Atoi)
	parse(p, func(text string) (int64, error) { return strconv.ParseInt(text, 10, 64) })
	parse(p, func(text string) (float64, error) { return strconv.ParseFloat(text, 64) })
	parse(p, func(text string) (Millis, error) {
		n, err := strconv.ParseInt(text, 10, 64)
		return Millis(n), err
	})
	parse(p, parseSize)
	parse(p, parseDuration)
	parse(p, parseOwners)
	parse(p, parsePortRange)
	parse(p, func(text string) ([]string, error) { return splitList(text), nil })
	parse(p, splitNumbers)
	parse(p, object[map[string][]string](p))
	parse(p, object[map[string]E2BTemplate](p))
}

// parse registers read for the settings of one type.
func parse[T any](p *parsers, read func(text string) (T, error)) {
	of := reflect.TypeFor[T]()
	p.types[of] = func(text string) (any, error) {
		text = strings.TrimPrefix(text, emptyText)
		value, err := read(text)
		if err == nil {
			return value, nil
		}
		wrong := refused{variable: p.variable}
		_, number := errors.AsType[*strconv.NumError](err)
		if inside, ok := errors.AsType[strictjson.Faults](err); ok {
			wrong.Faults = inside
		} else if number || text == "" || errors.Is(err, strictjson.ErrKind) {
			wrong.Add(p.variable, "want %s, got %s", strictjson.Want(of), strictjson.Quote(text))
		} else {
			wrong.Add(p.variable, "%s %s", strictjson.Quote(text), err)
		}
		return nil, wrong
	}
}

// object returns a parser for a variable that holds JSON.
func object[T any](p *parsers) func(text string) (T, error) {
	return func(text string) (all T, _ error) {
		var none T
		wrong := strictjson.Decode([]byte(text), &all, strictjson.Options{})
		for i, f := range wrong {
			if f.Kind == strictjson.Syntax || f.Field == "" {
				return none, strictjson.ErrKind
			}
			wrong[i].Field = fmt.Sprintf("%s.%s (%s)", p.key[p.variable], f.Field, p.variable)
		}
		if len(wrong) > 0 {
			return none, wrong
		}
		return all, nil
	}
}

func splitList(value string) []string {
	if value == "" {
		return []string{}
	}
	list := strings.Split(value, ",")
	for i := range list {
		list[i] = strings.TrimSpace(list[i])
	}
	return list
}

func splitNumbers(value string) ([]int, error) {
	list := []int{}
	for _, item := range splitList(value) {
		n, err := strconv.Atoi(item)
		if err != nil {
			return nil, err
		}
		list = append(list, n)
	}
	return list, nil
}
