package config

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/daycare-run/sandbox/internal/strictjson"
)

// prefix begins the names of all our variables.
const prefix = "SANDBOXD_"

// Environ returns an environment such as that of os.Environ by its variables. Of one that is given twice, the last counts.
func Environ(environ []string) map[string]string {
	variables := map[string]string{}
	for _, variable := range environ {
		if name, value, ok := strings.Cut(variable, "="); ok {
			variables[name] = value
		}
	}
	return variables
}

// override sets the values of environ in c. It returns the variable of each key that environ sets, and the faults of
// variables that are unknown or cannot be used.
func override(c *Config, environ map[string]string) (map[string]string, strictjson.Faults) {
	var present []string            // variables of this version
	variables := map[string]field{} // the fields that they set, also by their former names
	renamed := map[string]string{}  // present names by former ones
	for _, f := range settings(c) {
		present = append(present, f.variable)
		variables[f.variable] = f
		if f.former != "" {
			former := variableOf(f.former)
			variables[former], renamed[former] = f, f.variable
		}
	}
	slices.Sort(present)
	var wrong strictjson.Faults
	set := map[string]string{}
	for _, variable := range slices.Sorted(maps.Keys(environ)) {
		f, known := variables[variable]
		now := renamed[variable]
		if _, both := environ[now]; now != "" && both {
			wrong.Add(strictjson.Path("", variable), "is now called %s, which is set, too", now)
		} else if known {
			faults := f.parse(environ[variable])
			if wrong = append(wrong, faults...); len(faults) == 0 {
				set[f.key] = variable
			}
		} else if strings.HasPrefix(variable, prefix) {
			wrong.Add(strictjson.Path("", variable), "unknown variable%s", strictjson.Nearest(variable, present))
		}
	}
	return set, wrong
}

// parse sets a setting to the value of its variable. A value that cannot be used changes nothing.
func (f field) parse(text string) (wrong strictjson.Faults) {
	value := reflect.New(f.value.Type())
	err := parseInto(value, text)
	_, isNumber := errors.AsType[*strconv.NumError](err)
	if inside, ok := errors.AsType[strictjson.Faults](err); ok {
		for _, fault := range inside {
			wrong.Add(fmt.Sprintf("%s.%s (%s)", f.key, fault.Field, f.variable), "%s", fault.Says)
		}
	} else if err != nil && (isNumber || text == "" || errors.Is(err, strictjson.ErrKind)) {
		wrong.Add(f.variable, "want %s, got %s", strictjson.Want(f.value.Type()), strictjson.Quote(text))
	} else if err != nil {
		wrong.Add(f.variable, "%s %s", strictjson.Quote(text), err)
	} else {
		f.value.Set(value.Elem())
	}
	return wrong
}

// parseInto reads a text into what to points to. The error is Faults for what is wrong inside an object.
func parseInto(to reflect.Value, text string) (err error) {
	if own, ok := to.Interface().(json.Unmarshaler); ok { // it reads itself from a string
		quoted, _ := jsontext.AppendQuote(nil, text) // what is no UTF-8 is replaced, and refused then
		return own.UnmarshalJSON(quoted)
	}
	switch to := to.Interface().(type) {
	case *string:
		*to = text
	case *bool:
		*to, err = strconv.ParseBool(text)
	case *int:
		*to, err = strconv.Atoi(text)
	case *int64:
		*to, err = strconv.ParseInt(text, 10, 64)
	case *Millis:
		var n int64
		n, err = strconv.ParseInt(text, 10, 64)
		*to = Millis(n)
	case *float64:
		*to, err = strconv.ParseFloat(text, 64)
	case *[]string:
		*to = splitList(text)
	case *[]int:
		*to, err = splitNumbers(text)
	default:
		return parseObject(to, text)
	}
	return err
}

// parseObject reads JSON.
func parseObject(to any, text string) error {
	wrong := strictjson.Decode([]byte(text), to, strictjson.Options{})
	for _, f := range wrong {
		if f.Kind == strictjson.Syntax || f.Field == "" {
			return strictjson.ErrKind
		}
	}
	if len(wrong) > 0 {
		return wrong
	}
	return nil
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
