package config

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/daycare-run/sandbox/internal/strictjson"
)

// E2B is a second API, for clients that are written against E2B. Its callers' keys are the tokens
// of tcp.tokensFile. It uses the TLS and the host names of TCP, whether or not TCP listens.
type E2B struct {
	// Listen is an address and a port, such as 127.0.0.1:7482, or a port on all addresses. Default
	// "": the service does not serve such clients.
	Listen string `json:"listen" env:"LISTEN" reload:"restart"`

	// Domain is the domain below which programs that listen in sandboxes are reached, as clients'
	// getHost names them: <port>-<id>.<domain>. All these names must lead to Listen, and TCP's
	// certificate must be for them. The domain must hold nothing else, because what runs in a
	// sandbox can set cookies for it. If it has a port, such as localhost:7482, clients use that
	// port. Default "": such programs are not reached.
	Domain string `json:"domain" env:"DOMAIN" reload:"restart"`

	// DefaultNetwork is what a sandbox reaches if its creator does not say: "open", all of the
	// public internet, as with E2B, or "blocked", nothing. Default open.
	DefaultNetwork string `json:"defaultNetwork" env:"DEFAULT_NETWORK" reload:"restart"`

	// AllowRoot lets clients name the user root for commands and files of sandboxes that are made
	// from then on, if docker.runtime is gVisor. Inside, root has the capabilities that Docker
	// gives by default, except those for raw packets, devices and chroot. Only the host's root can
	// enter the folders of such users in usersDir. When it is turned off, the user root is refused
	// in all sandboxes. Default false.
	AllowRoot bool `json:"allowRoot" env:"ALLOW_ROOT" reload:"live"`

	// Templates are what sandboxes can be made from, by names of up to 64 of a-z, 0-9, "_", "." and
	// "-", a letter or digit first. A template named base replaces our own. `sandbox template`
	// edits them. Their variable holds a JSON object. Default none but base.
	Templates map[string]E2BTemplate `json:"templates" env:"TEMPLATES" reload:"live"`
}

// E2BTemplate is an image with what its sandboxes may use.
type E2BTemplate struct {
	// Image is an image that Docker has; empty for the service's own.
	Image string `json:"image"`
	// CPUs and Memory replace limits.cpus and limits.memory; 0 keeps these.
	CPUs   float64 `json:"cpus"`
	Memory Size    `json:"memory"`
	// Env are variables; those of a sandbox's creator and of a command's caller override them.
	Env map[string]string `json:"env" shown:"no"`
	// Start is a command line that bash runs when a sandbox has been made, and that keeps running.
	// Ready is a command line that is run again and again until it exits with 0: then the sandbox
	// is ready. A sandbox that is not ready after ReadyTimeoutMs is removed, and the call that
	// makes it fails; 0 is a minute.
	Start        string `json:"start" shown:"no"`
	Ready        string `json:"ready" shown:"no"`
	ReadyTimeout Millis `json:"readyTimeoutMs"`
}

// e2bDomainPattern matches host names with or without a port. A port and a sandbox's id come before
// the name.
var e2bDomainPattern = regexp.MustCompile(
	`^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z]([a-z0-9-]{0,61}[a-z0-9])?(:[1-9][0-9]{0,4})?$`)

const (
	maxE2BDomain    = 200
	maxReadyTimeout = 10 * time.Minute
)

var templatePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]{0,63}$`)

func (e E2B) check(f *faults, tcp TCP) {
	f.oneOf("e2b.defaultNetwork", e.DefaultNetwork, "open", "blocked")
	if e.Listen != "" {
		if err := checkListen(e.Listen); err != nil {
			f.Add("e2b.listen", "%s %s", strictjson.Quote(e.Listen), err)
		}
		if e.Listen == tcp.Listen {
			f.Add("e2b.listen", "%s is tcp.listen: each needs its own", strictjson.Quote(e.Listen))
		}
	}
	if e.Domain != "" {
		if !e2bDomainPattern.MatchString(e.Domain) || len(e.Domain) > maxE2BDomain {
			f.Add("e2b.domain",
				"%s is no name of a domain: want one such as sandboxes.example.org, in lower case, with a port if clients are to name one",
				strictjson.Quote(e.Domain))
		}
		if e.Listen == "" {
			f.Add("e2b.domain",
				"is without effect as long as e2b.listen is not set: set it, or leave this out")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(e.Templates)) {
		key, t := strictjson.Path("e2b.templates", name), e.Templates[name]
		if !templatePattern.MatchString(name) {
			f.Add(key, `%s is no name of a template: want 1 to 64 of a-z, 0-9, "_", "." and "-", a letter or digit first`,
				strictjson.Quote(name))
		}
		if t.CPUs != 0 && !(t.CPUs >= minCPUs && t.CPUs <= maxCPUs) {
			f.Add(key+".cpus", "%v is not from %v to %v", t.CPUs, minCPUs, maxCPUs)
		}
		if t.Memory != 0 {
			f.atLeast(key+".memory", t.Memory, minMemory)
		}
		if t.ReadyTimeout != 0 {
			f.between(key+".readyTimeoutMs", int64(t.ReadyTimeout), 1,
				maxReadyTimeout.Milliseconds())
		}
		for _, variable := range slices.Sorted(maps.Keys(t.Env)) {
			if variable == "" || strings.ContainsAny(variable, "=\x00") ||
				strings.Contains(t.Env[variable], "\x00") {
				f.Add(strictjson.Path(key+".env", variable),
					"is no variable: a name has neither = nor NUL")
			}
		}
	}
}
