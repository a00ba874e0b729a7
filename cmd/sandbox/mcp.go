package main

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"path"
	"slices"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
	"github.com/daycare-run/sandbox/internal/cli/mcp"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/internal/version"
	"github.com/daycare-run/sandbox/pathmap"
)

// mcpFlags are the flags of `sandbox mcp`.
type mcpFlags struct {
	target
	grants, domains, managers []string
	persistent, expose        bool
}

func mcpCommand(a *app) *cobra.Command {
	var f mcpFlags
	cmd := &cobra.Command{
		Use:   "mcp --user USER [--grant TAG]… [--allow-domain NAME]… [--package-manager NAME]…",
		Short: "Serve a sandbox to an agent over MCP, on stdin and stdout",
		Long: `mcp serves a user's sandbox to one agent over the Model Context Protocol, on stdin and stdout. Its tools
are exec, read, write, edit, list, process_start, process_list, process_get, process_wait, process_stop,
process_stop_all and process_remove. SIGTERM, SIGINT and SIGHUP end the calls that run, and then the server;
a second signal ends it at once.

The flags say the most that a call may have; each call asks for a part of it, and has nothing by default.
With only --grant @network a call may name any domain; with --allow-domain or --package-manager, only
these. A refusal says what is missing and what to ask for. With --sandbox, a call may have at most what that
sandbox holds.

With --persistent, exec runs in one machine that has all that the flags say, and goes on between the calls: a
server that a command leaves running answers the next at localhost. A call that asks for permissions still has
a container with just these. A --sandbox that is registered as persistent is served like that, too, unless
--allow-domain or --package-manager say what its calls may reach.

A program that starts MCP servers, such as Claude Desktop, is set up like this:

  {
    "mcpServers": {
      "sandbox": {
        "command": "sandbox",
        "args": ["mcp", "--user", "alice", "--grant", "@workspace", "--package-manager", "node"]
      }
    }
  }`,
		Example: `  sandbox mcp --user alice --grant @workspace
  sandbox mcp --user alice --grant @workspace --allow-domain '*.example.org' --package-manager python
  sandbox mcp --user alice --persistent --grant @workspace --package-manager node
  sandbox mcp --sandbox agent-7`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
			defer stop()
			context.AfterFunc(ctx, stop) // a second signal ends us at once
			c := a.client()
			defer c.Close()
			cfg, err := f.config(ctx, c)
			if err != nil {
				return err
			}
			return mcp.New(cfg).Run(ctx, &sdk.StdioTransport{})
		},
	}
	f.target.flags(a, cmd)
	flags := cmd.Flags()
	flags.StringArrayVar(&f.grants, "grant", nil,
		"what calls may ask for: @workspace, @write:/path, @read:/path, @network, @process:NAME, @secret:NAME or @events (repeatable)")
	flags.StringSliceVar(&f.domains, "allow-domain", nil,
		"a name that calls may reach, or a pattern of names (repeatable; implies @network)")
	flags.StringSliceVar(&f.managers, "package-manager",
		nil, "a preset of names that calls may reach: "+strings.Join(presets(), ", ")+
			", or the operator's own (repeatable; implies @network)")
	flags.BoolVar(&f.persistent, "persistent", false,
		"run commands in one machine with all of these grants; what they leave running goes on")
	flags.BoolVar(&f.expose, "expose", false,
		"let processes have ports that can be reached at the host's 127.0.0.1")
	cmd.MarkFlagsMutuallyExclusive("sandbox", "grant")
	cmd.MarkFlagsMutuallyExclusive("sandbox", "persistent")
	return cmd
}

// config returns the sandbox, and what its calls may ask for.
func (f mcpFlags) config(ctx context.Context, c *client.Client) (mcp.Config, error) {
	domains, err := policy.ParseDomains(f.domains)
	if err != nil {
		return mcp.Config{}, fmt.Errorf("--allow-domain: %w", err)
	}
	grants, err := f.allGrants()
	if err != nil {
		return mcp.Config{}, err
	}
	health, err := c.Health(ctx)
	if err != nil {
		return mcp.Config{}, err
	}
	id, err := f.register(ctx, c, grants)
	if err != nil {
		return mcp.Config{}, err
	}
	box, err := c.Get(ctx, id)
	if err != nil {
		return mcp.Config{}, err
	}
	if f.sandbox != "" {
		grants = held(box.Permissions)
	}
	return mcp.Config{
		Client: c, Sandbox: id, Persistent: f.inSandbox(box), Version: version.String(),
		MaxTimeout: time.Duration(health.MaxTimeoutMs) * time.Millisecond,
		Bounds: mcp.Bounds{
			Grants: grants, Held: f.sandbox != "", Domains: domains, PackageManagers: f.managers,
			Expose:     f.expose,
			WorkingDir: box.Permissions.WorkingDir,
			Home:       path.Join(health.UsersDir, box.UserID, "home"),
		},
	}, nil
}

// inSandbox reports whether commands run inside the sandbox. One that was registered by somebody
// else may reach more than the flags say.
func (f mcpFlags) inSandbox(box types.Sandbox) bool {
	return box.Persistent && (f.sandbox == "" || len(f.domains)+len(f.managers) == 0)
}

// ofServers ends the ids of sandboxes that servers have registered for their grants. A server goes
// on with its sandbox for as long as it runs, so these do not make room for others.
const ofServers = "-mcp"

// register returns the id of the sandbox, which it registers for a user.
func (f mcpFlags) register(ctx context.Context, c *client.Client,
	grants []string) (string, error) {
	if f.sandbox != "" {
		return f.sandbox, nil
	}
	if f.persistent { // by its names, too: no other server changes what this one reaches
		w := grantFlags{grants: grants, domains: f.domains, managers: f.managers}
		id := persistentID(f.user, grants, append(slices.Sorted(slices.Values(f.domains)),
			f.managers...)...) + ofServers
		if err := w.checkPersistent(); err != nil {
			return "", err
		}
		return id, put(ctx, c, id, w.persistent(f.user))
	}
	id, permissions := needs(f.user, grants)
	if id != ownID(f.user) {
		id += ofServers
	}
	return id, put(ctx, c, id, types.Registration{UserID: f.user, Permissions: permissions})
}

// allGrants returns the tags of the flags.
func (f mcpFlags) allGrants() ([]string, error) {
	w := grantFlags{grants: f.grants, domains: f.domains, managers: f.managers}
	return w.permissions(), checkTags(f.grants)
}

// checkTags checks tags that the service would find wrong only with a call.
func checkTags(tags []string) error {
	var faults []error
	for _, tag := range tags {
		kind, dir := policy.SplitTag(tag)
		if hasPath := kind == policy.TagWrite || kind == policy.TagRead; kind == "" ||
			hasPath && !strings.HasPrefix(dir, "/") ||
			kind == policy.TagProcess && policy.CheckProcessName(dir) != nil ||
			kind == policy.TagSecret && policy.CheckSecretName(dir) != nil {
			faults = append(faults,
				fmt.Errorf("--grant %q: the tags are @workspace, @network, @events, @write:/absolute/path, @read:/absolute/path, @process:NAME and @secret:NAME",
					tag))
		}
	}
	return errors.Join(faults...)
}

// held returns what a sandbox holds, as tags. An app writes to its own data instead of the working
// directory.
func held(p types.Permissions) []string {
	tags := []string{policy.TagWorkspace}
	if p.AppID != "" {
		tags = nil
		dir, dirErr := pathmap.ParseContainer(p.WorkingDir)
		app, appErr := policy.ParseAppID(p.AppID)
		if errors.Join(dirErr, appErr) == nil { // the service has accepted both
			tags = []string{policy.TagWrite +
				path.Join(policy.Permissions{WorkingDir: dir, AppID: app}.AppRoot().String(),
					p.AppID, "data")}
		}
	}
	if p.Network {
		tags = append(tags, policy.TagNetwork)
	}
	if p.Events {
		tags = append(tags, policy.TagEvents)
	}
	for _, dir := range p.WriteDirs {
		tags = append(tags, policy.TagWrite+dir)
	}
	for _, dir := range p.ReadDirs {
		tags = append(tags, policy.TagRead+dir)
	}
	for _, name := range p.Processes {
		tags = append(tags, policy.TagProcess+name)
	}
	for _, name := range p.Secrets {
		tags = append(tags, policy.TagSecret+name)
	}
	return tags
}
