package plan

import (
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/errs"
)

// variables returns the variables that say where a command's home is and make tools keep their
// state where it can be written. Tools look for their configuration at home and write below state,
// which is home if that can be written; temporary files go to tmp. A tool that would then find only
// in state what is configured at home (git's configuration, npm's, what pip has installed for a
// user) is left to look at home.
func (p Plan) variables() map[string]string {
	state, caches := p.state, p.cacheDir()
	return map[string]string{
		"HOME":        p.Home,
		"USERPROFILE": p.Home,

		"XDG_CONFIG_HOME": state + "/.config",
		"XDG_CACHE_HOME":  caches,
		"XDG_DATA_HOME":   state + "/.local/share",
		"XDG_STATE_HOME":  state + "/.local/state",

		"TMPDIR": p.tmp,
		"TMP":    p.tmp,
		"TEMP":   p.tmp,

		"CARGO_HOME":         state + "/.cargo",
		"RUSTUP_HOME":        state + "/.rustup",
		"GOPATH":             state + "/go",
		"GOCACHE":            caches + "/go-build",
		"GOMODCACHE":         state + "/go/pkg/mod",
		"npm_config_cache":   state + "/.npm",
		"npm_config_prefix":  p.Home + "/.local", // where "npm install --global" installs; the image's own is read-only
		"NODE_REPL_HISTORY":  state + "/.node_repl_history",
		"YARN_CACHE_FOLDER":  caches + "/yarn",
		"YARN_GLOBAL_FOLDER": state + "/.yarn/berry",
		"PNPM_HOME":          state + "/.local/share/pnpm",
		"PIP_CACHE_DIR":      caches + "/pip",
		"UV_CACHE_DIR":       caches + "/uv",
		"GEM_HOME":           state + "/.gem",
		"BUNDLE_USER_HOME":   state + "/.bundle",
		"COMPOSER_HOME":      state + "/.composer",
		"NUGET_PACKAGES":     state + "/.nuget/packages",
		"DOTNET_CLI_HOME":    state,
		"PUB_CACHE":          state + "/.pub-cache",
		"GRADLE_USER_HOME":   state + "/.gradle",
		"MAVEN_USER_HOME":    state + "/.m2",
	}
}

// cacheDir is where tools keep what they can get again.
func (p Plan) cacheDir() string {
	if path.Base(p.state) == ".cache" {
		return p.state
	}
	return p.state + "/.cache"
}

// trustVariables returns the variables that make programs trust the certificates of a bundle if
// they do not look where the image's own programs do, or have a list of their own.
func trustVariables(bundle string) map[string]string {
	if bundle == "" {
		return nil
	}
	variables := map[string]string{}
	for _, name := range []string{
		"SSL_CERT_FILE", "NIX_SSL_CERT_FILE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO",
		"REQUESTS_CA_BUNDLE", "HTTPLIB2_CA_CERTS", "PIP_CERT",
		"NODE_EXTRA_CA_CERTS", "DENO_CERT", "CARGO_HTTP_CAINFO", "BUNDLE_SSL_CA_CERT",
		"COMPOSER_CAFILE", "HEX_CACERTS_PATH", "AWS_CA_BUNDLE",
		"CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
	} {
		variables[name] = bundle
	}
	return variables
}

// offlineVariables returns the variables that make tools give up at once where there is no network,
// instead of trying again until their caller's time is up.
func (p Plan) offlineVariables() map[string]string {
	if p.Spec.Egress.Profile != "" {
		return nil
	}
	return map[string]string{
		"npm_config_fetch_retries": "0", // pnpm's too
		"YARN_HTTP_RETRY":          "0",
		"PIP_RETRIES":              "0",
		"UV_HTTP_RETRIES":          "0",
		"CARGO_NET_RETRY":          "0",
		"RUSTUP_MAX_RETRIES":       "0",
		"BUNDLE_RETRY":             "0",
	}
}

// quietVariables keep tools from telling of newer versions of themselves amid a command's output.
var quietVariables = map[string]string{
	"npm_config_update_notifier":    "false", // pnpm's too
	"PIP_DISABLE_PIP_VERSION_CHECK": "1",
}

// Environment returns a command's whole environment, sorted: the image's, then what this service
// sets, then what the call gives, where later values replace earlier ones.
func (p Plan) Environment(given ...map[string]string) []string {
	_, bundle := p.Spec.Certificates()
	layers := append([]map[string]string{p.variables(), quietVariables, p.offlineVariables(),
		trustVariables(bundle), p.placeholders()}, given...)
	all := merged(p.platform.env, layers...)
	if len(p.Shown) > 1 { // so what it sees may be others'
		trustMounted(all)
	}
	return listed(all)
}

// trustMounted makes git work in directories of other owners, as what is mounted may be, unless the
// variables say themselves whom git is to trust. Nothing that a command sees is another tenant's,
// but what the caller has mounted.
func trustMounted(all map[string]string) {
	const count, key, value, name = "GIT_CONFIG_COUNT", "GIT_CONFIG_KEY_", "GIT_CONFIG_VALUE_",
		"safe.directory"
	n := 0
	if given, ok := all[count]; ok {
		var err error
		if n, err = strconv.Atoi(given); err != nil || n < 0 || n > len(all) {
			return // git will say what is wrong with it
		}
	}
	for i := range n {
		if strings.EqualFold(all[key+strconv.Itoa(i)], name) {
			return
		}
	}
	all[count], all[key+strconv.Itoa(n)], all[value+strconv.Itoa(n)] = strconv.Itoa(n+1), name, "*"
}

// Join returns variables as a command has them, of which later ones win.
func Join(given ...map[string]string) []string {
	return listed(merged(nil, given...))
}

// merged returns variables by name.
func merged(image []string, given ...map[string]string) map[string]string {
	all := map[string]string{}
	for _, entry := range image {
		if name, value, ok := strings.Cut(entry, "="); ok {
			all[name] = value
		}
	}
	for _, layer := range given {
		maps.Copy(all, layer)
	}
	return all
}

// listed returns variables as a program gets them, sorted.
func listed(all map[string]string) []string {
	env := make([]string, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		env = append(env, name+"="+all[name])
	}
	return env
}

// CheckVariables refuses what execve cannot carry. Values are not shown: they may be secrets.
func CheckVariables(field string, variables map[string]string) error {
	for name, value := range variables {
		switch {
		case name == "":
			return errs.Invalid("%s has a variable without a name", field)
		case strings.ContainsAny(name, "=\x00"):
			return errs.Invalid("%s has the name %q: a name has neither = nor NUL", field, name)
		case strings.Contains(value, "\x00"):
			return errs.Invalid("%s.%s has a NUL byte", field, name)
		case len(name)+1+len(value) > launch.MaxString:
			return errs.Invalid(
				"%s.%.100s has %d bytes with its name, and Linux takes at most %d in one variable; pass it in stdin or a file",
				field, name, len(name)+1+len(value), launch.MaxString)
		}
	}
	return nil
}
