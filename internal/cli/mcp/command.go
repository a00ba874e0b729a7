package mcp

import "github.com/daycare-run/sandbox/api/types"

// Confinement is what a call says that its command may do and reach.
type Confinement struct {
	Permissions     []string `json:"permissions,omitempty" jsonschema:"what the command may do beyond reading the home and writing to /tmp: @workspace to write to the working directory, @write:/absolute/path to write there, @read:/absolute/path to see a further mount, @network to reach the names in allowedDomains and packageManagers, @process:NAME to reach the ports of the process of that name at 127.0.0.1, @secret:NAME to have the credential of that name put into what is sent to its hosts, which allowedDomains has to name, too; default none"`
	AllowedDomains  []string `json:"allowedDomains,omitempty" jsonschema:"names to reach by HTTP and HTTPS: example.org, or *.example.org for all below it; needs @network in permissions"`
	PackageManagers []string `json:"packageManagers,omitempty" jsonschema:"presets for the registries of package managers: node, python, go, rust, java, ruby, php, dotnet, dart or debian; rust+, java+, ruby+ and php+ also allow other hosts that their tools need; needs @network in permissions"`
	DenyRead        []string `json:"denyRead,omitempty" jsonschema:"absolute paths to hide from the command, with all below"`
	DenyWrite       []string `json:"denyWrite,omitempty" jsonschema:"absolute paths that the command must not change, nor what is below"`
	DeniedDomains   []string `json:"deniedDomains,omitempty" jsonschema:"names not to reach, whatever allowedDomains and packageManagers say"`
}

// CommandInput says how to run a command.
type CommandInput struct {
	Command string            `json:"command" jsonschema:"a command line for bash"`
	Cwd     string            `json:"cwd,omitempty" jsonschema:"directory to run in, relative to the working directory or absolute; default the working directory"`
	Env     map[string]string `json:"env,omitempty" jsonschema:"variables for the command"`
	Home    string            `json:"home,omitempty" jsonschema:"absolute directory for HOME and the caches of tools, one that the command may write to; default HOME is /home, and the caches are in it where all of it may be written, else in /tmp"`
	Confinement
}

// asksForNothing reports whether a command neither asks for anything nor gives anything up.
func (r CommandInput) asksForNothing() bool {
	return len(r.Permissions)+len(r.AllowedDomains)+len(r.PackageManagers)+len(r.DenyRead)+
		len(r.DenyWrite)+len(r.DeniedDomains) == 0 && r.Home == ""
}

// exec returns the service's form of a call, if it asks for nothing beyond the bounds.
func (s *Server) exec(r CommandInput) (types.Exec, error) {
	tags, err := s.cfg.Bounds.tags(r.Permissions)
	if err != nil {
		return types.Exec{}, err
	}
	if err := s.cfg.Bounds.names(r.AllowedDomains, r.PackageManagers); err != nil {
		return types.Exec{}, err
	}
	return types.Exec{
		Command: r.Command, Cwd: r.Cwd, Env: r.Env, Home: r.Home,
		Permissions: tags, AllowedDomains: r.AllowedDomains, PackageManagers: r.PackageManagers,
		Restrictions: types.Restrictions{DenyRead: r.DenyRead, DenyWrite: r.DenyWrite,
			DeniedDomains: r.DeniedDomains},
	}, nil
}
