package config

import (
	"reflect"
	"regexp"
	"strings"

	"github.com/daycare-run/sandbox/internal/strictjson"
)

// faults collects everything that is wrong.
type faults struct{ strictjson.Faults }

// field is one setting of a Config.
type field struct {
	key      string // path in settings.json
	variable string // name in the environment
	former   string // key that it had in former versions, which still sets it; empty for none
	live     bool   // takes effect without a restart
	hidden   bool   // may hold a secret, so Values does not show it
	value    reflect.Value
}

// fields lists the settings of a section, in the order of its type. The section must be
// addressable.
func fields(section reflect.Value, key, variable string) (list []field) {
	for i := range section.NumField() {
		tag, value := section.Type().Field(i).Tag, section.Field(i)
		inner := key
		if name := tag.Get("json"); name != "" {
			inner = strictjson.Path(key, name)
		}
		if value.Kind() == reflect.Struct && tag.Get("env") == "" {
			list = append(list, fields(value, inner, variable+tag.Get("envPrefix"))...)
			continue
		}
		list = append(list, field{inner, variable + tag.Get("env"), tag.Get("former"),
			tag.Get("reload") == "live", isHidden(tag), value})
	}
	return list
}

func isHidden(tag reflect.StructTag) bool { return tag.Get("shown") == "no" }

// formerKeys returns the present key of each setting by the key that it had in former versions.
func formerKeys() map[string]string {
	former := map[string]string{}
	for _, f := range settings(&Config{}) {
		if f.former != "" {
			former[f.former] = f.key
		}
	}
	return former
}

// capitals begin the words of a key.
var capitals = regexp.MustCompile(`[A-Z]`)

// variableOf returns the name of the variable that sets a key.
func variableOf(key string) string {
	return prefix + strings.ToUpper(
		capitals.ReplaceAllString(strings.ReplaceAll(key, ".", "_"), "_$0"))
}

// settings lists every setting of c.
func settings(c *Config) []field { return fields(reflect.ValueOf(c).Elem(), "", prefix) }
