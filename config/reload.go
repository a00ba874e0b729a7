package config

import (
	"fmt"
	"reflect"
)

// Next is what a service that runs with c goes on with when its settings have been read again: of those
// that may change while it runs, what was read, and of the others, what c has. changed are the keys of the
// settings that differ from now on, and pending those that were read but need a restart. The error names
// what does not go together; nothing is to change then.
func (c Config) Next(read Config) (next Config, changed, pending []string, err error) {
	next = c
	now, later := settings(&next), settings(&read)
	for i, f := range now {
		switch {
		case reflect.DeepEqual(f.value.Interface(), later[i].value.Interface()):
		case f.live:
			f.value.Set(later[i].value)
			changed = append(changed, f.key)
		default:
			pending = append(pending, f.key)
		}
	}
	if wrong := next.check(); len(wrong.Faults) > 0 {
		return c, nil, pending, fmt.Errorf("cannot use these settings without a restart: %w", wrong)
	}
	return next, changed, pending, nil
}
