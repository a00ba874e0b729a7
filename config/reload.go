package config

import (
	"fmt"
	"reflect"
)

// Next returns the settings for a service that runs with c after its settings have been read again.
// Settings that may change while it runs are those of read, the others those of c. changed are the
// keys of the settings that change now, and pending those that need a restart to change. The error
// says which settings are impossible together; the service must not change anything then.
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
