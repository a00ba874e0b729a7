package wrapper

import (
	"errors"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"
)

// others, otherFilesystem and otherNetwork have the remaining keys of srt's form. A nil value was
// not given.
type others struct {
	EnableWeakerNestedSandbox    bool           `json:"enableWeakerNestedSandbox"`
	EnableWeakerNetworkIsolation bool           `json:"enableWeakerNetworkIsolation"`
	AllowAppleEvents             bool           `json:"allowAppleEvents"`
	AllowPty                     jsontext.Value `json:"allowPty"`
	Credentials                  jsontext.Value `json:"credentials"`
	IgnoreViolations             jsontext.Value `json:"ignoreViolations"`
	Ripgrep                      jsontext.Value `json:"ripgrep"`
	MandatoryDenySearchDepth     jsontext.Value `json:"mandatoryDenySearchDepth"`
	Seccomp                      jsontext.Value `json:"seccomp"`
	BwrapPath                    jsontext.Value `json:"bwrapPath"`
	SocatPath                    jsontext.Value `json:"socatPath"`
	JavaAgentJarPath             jsontext.Value `json:"javaAgentJarPath"`
	Windows                      jsontext.Value `json:"windows"`
	Git                          jsontext.Value `json:"git"`
}

type otherFilesystem struct {
	Disabled       bool           `json:"disabled"`
	AllowGitConfig jsontext.Value `json:"allowGitConfig"`
}

type otherNetwork struct {
	DeniedDomainReasons jsontext.Value `json:"deniedDomainReasons"`
	StrictAllowlist     jsontext.Value `json:"strictAllowlist"`
	AllowUnixSockets    []string       `json:"allowUnixSockets"`
	AllowAllUnixSockets bool           `json:"allowAllUnixSockets"`
	AllowLocalBinding   bool           `json:"allowLocalBinding"`
	AllowMachLookup     jsontext.Value `json:"allowMachLookup"`
	HTTPProxyPort       jsontext.Value `json:"httpProxyPort"`
	SOCKSProxyPort      jsontext.Value `json:"socksProxyPort"`
	ParentProxy         jsontext.Value `json:"parentProxy"`
	MITMProxy           jsontext.Value `json:"mitmProxy"`
	TLSTerminate        jsontext.Value `json:"tlsTerminate"`
	FilterRequest       jsontext.Value `json:"filterRequest"`
}

// refused returns an error for the keys that ask for what the service does not do: to ignore them
// would give the command more than the file says.
func (s Settings) refused() error {
	n := s.Network
	var faults []error
	for _, key := range []struct {
		given     bool
		name, why string
	}{
		{s.Filesystem.Disabled, "filesystem.disabled",
			"the file system cannot be opened to a command; name what it may write in filesystem.allowWrite"},
		{len(n.AllowUnixSockets) > 0, "network.allowUnixSockets",
			"sockets of the host are out of a command's reach; take the key out"},
		{n.AllowAllUnixSockets, "network.allowAllUnixSockets",
			"sockets of the host are out of a command's reach; take the key out"},
		{given(n.MITMProxy), "network.mitmProxy",
			"connections go to the names themselves, through no proxy; take the key out"},
		{given(n.TLSTerminate), "network.tlsTerminate", "TLS is not looked into; take the key out"},
		{given(n.FilterRequest), "network.filterRequest",
			"requests are filtered by their names alone; take the key out"},
		{given(s.Credentials), "credentials",
			"no credential is put into requests; hide files with filesystem.denyRead, and give variables with --env"},
		{s.AllowAppleEvents, "allowAppleEvents", "there is nothing like it here; take the key out"},
		{s.EnableWeakerNetworkIsolation, "enableWeakerNetworkIsolation",
			"the network's isolation is the service's to decide; take the key out"},
	} {
		if key.given {
			faults = append(faults, fmt.Errorf("%s: %s", key.name, key.why))
		}
	}
	return errors.Join(faults...)
}

// warnings returns a warning for each key that has no effect.
func (s Settings) warnings() []string {
	var all []string
	if s.EnableWeakerNestedSandbox {
		all = append(all,
			"enableWeakerNestedSandbox has no effect: the service's own setting docker.enableWeakerNestedSandbox decides")
	}
	if s.Network.AllowLocalBinding {
		all = append(all,
			"network.allowLocalBinding has no effect: a command may bind ports of its own container, which nobody else reaches")
	}
	n := s.Network
	for _, key := range []struct {
		name  string
		value jsontext.Value
	}{
		{"filesystem.allowGitConfig", s.Filesystem.AllowGitConfig},
		{"network.allowMachLookup", n.AllowMachLookup}, {"network.httpProxyPort", n.HTTPProxyPort},
		{"network.socksProxyPort", n.SOCKSProxyPort}, {"network.parentProxy", n.ParentProxy},
		{"network.deniedDomainReasons", n.DeniedDomainReasons},
		{"ignoreViolations", s.IgnoreViolations}, {"ripgrep", s.Ripgrep},
		{"mandatoryDenySearchDepth", s.MandatoryDenySearchDepth},
		{"allowPty", s.AllowPty}, {"seccomp", s.Seccomp}, {"bwrapPath", s.BwrapPath},
		{"socatPath", s.SocatPath}, {"javaAgentJarPath", s.JavaAgentJarPath},
		{"windows", s.Windows}, {"git", s.Git},
	} {
		if given(key.value) {
			all = append(all, key.name+" has no meaning here and was ignored")
		}
	}
	return all
}

// given reports whether a key is there and asks for something.
func given(value jsontext.Value) bool {
	switch string(value) {
	case "", "null", "false", "[]", "{}":
		return false
	}
	return true
}
