package config

import (
	"encoding"
	"reflect"
)

// field is one member of Config or of a section of it.
type field struct {
	name     string // key in the object that holds it
	key      string // path in settings.json
	variable string // name in the environment; its prefix when the field is a section
	section  bool
	live     bool          // takes effect without a restart
	value    reflect.Value // addressable
}

// fields lists the members of section in the order of the type.
func fields(section field) []field {
	var list []field
	t := section.value.Type()
	for i := range t.NumField() {
		f := field{name: t.Field(i).Tag.Get("json"), value: section.value.Field(i)}
		f.variable, f.section = t.Field(i).Tag.Lookup("envPrefix")
		if !f.section {
			f.variable = t.Field(i).Tag.Get("env")
			f.live = t.Field(i).Tag.Get("reload") == "live"
		}
		f.key, f.variable = keyPath(section.key, f.name), section.variable+f.variable
		list = append(list, f)
	}
	return list
}

// settings lists every field of c that is no section.
func settings(c *Config) []field {
	var list []field
	var walk func(section field)
	walk = func(section field) {
		for _, f := range fields(section) {
			if f.section {
				walk(f)
			} else {
				list = append(list, f)
			}
		}
	}
	walk(root(c))
	return list
}

func root(c *Config) field {
	return field{variable: prefix, section: true, value: reflect.ValueOf(c).Elem()}
}

func keyPath(parent, key string) string {
	if parent == "" {
		return key
	}
	return parent + "." + key
}

// text returns the field as what reads itself from text, or nil.
func (f field) text() encoding.TextUnmarshaler {
	t, _ := f.value.Addr().Interface().(encoding.TextUnmarshaler)
	return t
}

// wants says what the value must be, in the words of a message.
func (f field) wants() string {
	if f.section {
		return "an object"
	}
	switch f.value.Interface().(type) {
	case Size:
		return "a size such as 16Gi"
	case Duration:
		return "a duration such as 15m"
	case Owners:
		return "an owner such as 1000:1000 or a range of them such as 200000-299999"
	case PortRange:
		return "a range of ports such as 20000-20999"
	case bool:
		return "true or false"
	case int, int64, Millis:
		return "a whole number"
	case float64:
		return "a number"
	case []string:
		return "a list of strings"
	case []int:
		return "a list of whole numbers"
	case map[string][]string:
		return "an object of lists of strings"
	}
	return "a string"
}
