package config

import (
	"encoding/json"
	"strings"
)

// Value is a setting as it is.
type Value struct {
	Key string
	// Text is its value as JSON, the begin of it if it is long.
	Text string
	// Live says that a change takes effect without a restart.
	Live bool
}

// maxValue is how much of a value is told, in bytes.
const maxValue = 500

// Values are all settings, none of which is a secret: those are in files that settings name.
func (c Config) Values() (list []Value) {
	for _, f := range settings(&c) {
		text, err := json.Marshal(f.value.Interface())
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
