package sandbox

import (
	"maps"
	"slices"
	"strings"

	"github.com/daycare-run/sandbox/fault"
)

// homeVariables make tools keep their state in a home, and what they need for the
// moment in tmp.
func homeVariables(home, tmp string) map[string]string {
	return map[string]string{
		"HOME":        home,
		"USERPROFILE": home,

		"XDG_CONFIG_HOME": home + "/.config",
		"XDG_CACHE_HOME":  home + "/.cache",
		"XDG_DATA_HOME":   home + "/.local/share",
		"XDG_STATE_HOME":  home + "/.local/state",

		"TMPDIR": tmp,
		"TMP":    tmp,
		"TEMP":   tmp,

		"CARGO_HOME":        home + "/.cargo",
		"RUSTUP_HOME":       home + "/.rustup",
		"GOPATH":            home + "/go",
		"GOCACHE":           home + "/.cache/go-build",
		"GOMODCACHE":        home + "/go/pkg/mod",
		"npm_config_cache":  home + "/.npm",
		"YARN_CACHE_FOLDER": home + "/.cache/yarn",
		"PNPM_HOME":         home + "/.local/share/pnpm",
		"PIP_CACHE_DIR":     home + "/.cache/pip",
		"UV_CACHE_DIR":      home + "/.cache/uv",
		"GEM_HOME":          home + "/.gem",
		"BUNDLE_USER_HOME":  home + "/.bundle",
		"COMPOSER_HOME":     home + "/.composer",
		"NUGET_PACKAGES":    home + "/.nuget/packages",
		"DOTNET_CLI_HOME":   home,
		"PUB_CACHE":         home + "/.pub-cache",
		"GRADLE_USER_HOME":  home + "/.gradle",
		"MAVEN_USER_HOME":   home + "/.m2",
	}
}

// terminalVariables say which terminal is meant where the call does not: one that all programs know.
func terminalVariables(r Request) map[string]string {
	if r.Terminal == nil {
		return nil
	}
	return map[string]string{"TERM": "xterm-256color"}
}

// environment is a command's whole environment, sorted: the image's, then the home variables, then
// what the call gives, the later over the earlier.
func environment(image []string, given ...map[string]string) []string {
	all := map[string]string{}
	for _, entry := range image {
		if name, value, ok := strings.Cut(entry, "="); ok {
			all[name] = value
		}
	}
	for _, layer := range given {
		maps.Copy(all, layer)
	}
	env := make([]string, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		env = append(env, name+"="+all[name])
	}
	return env
}

// checkVariables refuses what execve cannot carry. Values are not shown: they may be secrets.
func checkVariables(field string, variables map[string]string) error {
	for name, value := range variables {
		switch {
		case name == "":
			return fault.Invalid("%s has a variable without a name", field)
		case strings.ContainsAny(name, "=\x00"):
			return fault.Invalid("%s has the name %q: a name has neither = nor NUL", field, name)
		case strings.Contains(value, "\x00"):
			return fault.Invalid("%s.%s has a NUL byte", field, name)
		}
	}
	return nil
}
