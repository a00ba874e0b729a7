package access

import (
	"fmt"

	"github.com/daycare-run/sandbox/internal/quota"
)

// quotaEntry are the bounds of one token, by the keys of quotas.perToken in the settings. What is not there is
// not lowered.
type quotaEntry struct {
	Containers        *int `json:"containers"`
	ColdStarts        *int `json:"coldStarts"`
	Commands          *int `json:"commands"`
	DetachedExecs     *int `json:"detachedExecs"`
	Processes         *int `json:"processes"`
	ExposedPorts      *int `json:"exposedPorts"`
	Sandboxes         *int `json:"sandboxes"`
	RequestsPerSecond *int `json:"requestsPerSecond"`
}

func (e quotaEntry) read() (own quota.Bounds, err error) {
	for _, field := range []struct {
		of    quota.Resource
		value *int
		to    *int
	}{
		{quota.Containers, e.Containers, &own.Containers}, {quota.ColdStarts, e.ColdStarts, &own.ColdStarts},
		{quota.Commands, e.Commands, &own.Commands}, {quota.DetachedExecs, e.DetachedExecs, &own.DetachedExecs},
		{quota.Processes, e.Processes, &own.Processes}, {quota.ExposedPorts, e.ExposedPorts, &own.ExposedPorts},
		{quota.Sandboxes, e.Sandboxes, &own.Sandboxes}, {quota.Requests, e.RequestsPerSecond, &own.RequestsPerSecond},
	} {
		if field.value == nil {
			continue
		}
		if *field.value < 1 {
			return own, fmt.Errorf("quotas.%s is %d, less than 1: to take a token's rights away, remove it", field.of, *field.value)
		}
		*field.to = *field.value
	}
	return own, nil
}
