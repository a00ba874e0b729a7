package config

import (
	"encoding/json"
	"reflect"
	"strings"
)

// Value is a setting with its value.
type Value struct {
	Key string
	// Text is the value as JSON; if that is long, its beginning.
	Text string
	// Live reports whether a change takes effect without a restart.
	Live bool
}

// maxValue is how much of a value is shown, in bytes.
const maxValue = 500

// notShown replaces what may hold a secret.
const notShown = "(not shown)"

// Values returns all settings for others to see. Secrets belong in files that settings name. If a
// setting may hold a secret all the same, as its tag shown:"no" says, notShown replaces it.
func (c Config) Values() (list []Value) {
	for _, f := range settings(&c) {
		value := shown(f.value, f.hidden).Interface()
		switch written := value.(type) { // with their units, as settings.json has them
		case Duration:
			value = written.short()
		case Size:
			value = written.String()
		}
		text, err := json.Marshal(value)
		if err != nil {
			text = []byte("?")
		}
		if len(text) > maxValue {
			text = append(text[:maxValue:maxValue], "…"...)
		}
		list = append(list, Value{f.key, strings.ToValidUTF8(string(text), "\uFFFD"), f.live})
	}
	return list
}

// shown returns a copy of a setting, or of a part of one, as others may see it. Of a hidden
// setting, the keys of maps and the program of a command remain.
func shown(v reflect.Value, hidden bool) reflect.Value {
	result := reflect.New(v.Type()).Elem()
	result.Set(v)
	switch {
	case v.Kind() == reflect.String && hidden && v.Len() > 0:
		result.SetString(notShown)
	case v.Kind() == reflect.Slice && !v.IsNil():
		result.Set(reflect.MakeSlice(v.Type(), v.Len(), v.Len()))
		for i := range v.Len() {
			result.Index(i).Set(shown(v.Index(i), hidden && i > 0))
		}
	case v.Kind() == reflect.Map && !v.IsNil():
		result.Set(reflect.MakeMap(v.Type()))
		for name, value := range v.Seq2() {
			result.SetMapIndex(name, shown(value, hidden))
		}
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() {
				result.Field(i).Set(shown(v.Field(i), hidden || isHidden(f.Tag)))
			}
		}
	}
	return result
}
