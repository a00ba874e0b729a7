package config

import "reflect"

// Quotas bound what one user, one token and all of them together may have at a time. A request that
// exceeds a bound is refused as busy, with the name of the bound; a cold start waits for its turn
// instead. No value means "unbounded": set a large one instead.
type Quotas struct {
	// PerUser is for each user.
	PerUser Quota `json:"perUser" envPrefix:"PER_USER_"`

	// PerToken is for each token that acts only for some users. An entry of the tokens file may
	// lower it for its own token, or bound a token that acts for everyone, with an object quotas of
	// the same keys.
	PerToken Quota `json:"perToken" envPrefix:"PER_TOKEN_"`

	// Total is for all users together.
	Total TotalQuota `json:"total" envPrefix:"TOTAL_"`
}

// Quota is what one user or one token may have at a time. Each field is from 1 to 1000000.
type Quota struct {
	TotalQuota

	// Calls is how many requests may be answered at a time, including those that follow something
	// and WebSockets. Default 200 for a user, 400 for a token.
	Calls int `json:"calls" env:"CALLS" reload:"live"`

	// RequestsPerSecond is how many requests may come in a second; after a pause, twice as many at
	// once. Default 1000 for a user, 2000 for a token.
	RequestsPerSecond int `json:"requestsPerSecond" env:"REQUESTS_PER_SECOND" reload:"live"`
}

// TotalQuota has the bounds that also apply to all users together. Each is from 1 to 1000000, but
// the total of ColdStarts may be 0. The three defaults are for a user, for a token, and for all.
type TotalQuota struct {
	// Containers is how many containers for execs and of persistent sandboxes there may be. Beyond
	// that, the one for execs that was idle for longest is removed; for the total, one of the user
	// with the most containers. If none is idle, the call is refused. Default 16, 64, 500.
	Containers int `json:"containers" env:"CONTAINERS" reload:"live"`

	// ColdStarts is how many containers may be made at a time, including those of processes.
	// Further ones wait, and waiting users take turns. Default 2, 4, 0: for the total, 0 means two
	// for each processor, with which the last of many ends soonest, and at most 32.
	ColdStarts int `json:"coldStarts" env:"COLD_STARTS" reload:"live"`

	// Commands is how many commands may run or wait to run. Default 100, 200, 500.
	Commands int `json:"commands" env:"COMMANDS" reload:"live"`

	// DetachedExecs is how many execs with detachOnDisconnect there may be, including those that
	// have ended and are kept for five minutes: of these, the oldest of the user who has the most
	// execs makes room. Each takes up to 2 MiB of memory. Default 64, 128, 256.
	DetachedExecs int `json:"detachedExecs" env:"DETACHED_EXECS" reload:"live"`

	// Processes is how many durable processes there may be, including those that have ended: the
	// user's that ended first makes room. Default 64, 256, 1000.
	Processes int `json:"processes" env:"PROCESSES" reload:"live"`

	// ExposedPorts is how many ports of processes may be exposed. Default 32, 128, 1000.
	ExposedPorts int `json:"exposedPorts" env:"EXPOSED_PORTS" reload:"live"`

	// Sandboxes is how many sandboxes may be registered. Default 1000, 2000, 100000.
	Sandboxes int `json:"sandboxes" env:"SANDBOXES" reload:"live"`
}

func defaultQuotas() Quotas {
	return Quotas{
		PerUser: Quota{TotalQuota{
			Containers: 16, ColdStarts: 2, Commands: 100, DetachedExecs: 64, Processes: 64,
			ExposedPorts: 32, Sandboxes: 1000,
		}, 200, 1000},
		PerToken: Quota{TotalQuota{
			Containers: 64, ColdStarts: 4, Commands: 200, DetachedExecs: 128, Processes: 256,
			ExposedPorts: 128, Sandboxes: 2000,
		}, 400, 2000},
		Total: TotalQuota{
			Containers: 500, ColdStarts: 0, Commands: 500, DetachedExecs: 256, Processes: 1000,
			ExposedPorts: 1000, Sandboxes: 100_000,
		},
	}
}

const maxQuota = 1_000_000

func (q Quotas) check(f *faults) {
	for _, bound := range fields(reflect.ValueOf(&q).Elem(), "quotas", "") {
		least := int64(1)
		if bound.key == "quotas.total.coldStarts" {
			least = 0
		}
		f.between(bound.key, bound.value.Int(), least, maxQuota)
	}
}

// moved are keys of former versions, with the keys that have replaced them.
var moved = map[string]string{
	"exec.maxInFlight":     "quotas.total.commands",
	"processes.maxPerUser": "quotas.perUser.processes",
	"processes.maxTotal":   "quotas.total.processes",
}
