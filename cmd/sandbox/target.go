package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
	"github.com/daycare-run/sandbox/internal/policy"
)

// target says whose sandbox a command is for.
type target struct{ user, sandbox string }

// String returns the target as flags.
func (t target) String() string {
	if t.sandbox != "" {
		return "--sandbox " + t.sandbox
	}
	return "--user " + t.user
}

func (t *target) flags(a *app, cmd *cobra.Command) {
	cmd.Flags().StringVarP(&t.user, "user", "u", "",
		"the user whose sandbox to use; commands that run or write something register one if necessary")
	cmd.Flags().StringVar(&t.sandbox, "sandbox", "", "a registered sandbox, instead of --user")
	cmd.MarkFlagsOneRequired("user", "sandbox") // for completion
	cmd.MarkFlagsMutuallyExclusive("user", "sandbox")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error { // before cobra reports it in its own words
		user, sandbox := cmd.Flags().Changed("user"), cmd.Flags().Changed("sandbox")
		if user == sandbox {
			return errors.New(
				"whose sandbox to use is not clear: give --user USER or --sandbox ID, but not both")
		}
		return nil
	}
	_ = cmd.RegisterFlagCompletionFunc("sandbox",
		a.complete(ofSandboxes(func(box types.Sandbox) string { return box.ID })))
	a.completeUsers(cmd)
}

// completeUsers makes the flag --user complete the users who have a sandbox.
func (a *app) completeUsers(cmd *cobra.Command) {
	_ = cmd.RegisterFlagCompletionFunc("user",
		a.complete(ofSandboxes(func(box types.Sandbox) string { return box.UserID })))
}

// complete completes a word with what the service knows.
func (a *app) complete(known func(context.Context, *client.Client) ([]string,
	error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion,
		cobra.ShellCompDirective) {
		c := a.client()
		defer c.Close()
		words, err := known(cmd.Context(), c)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return words, cobra.ShellCompDirectiveNoFileComp
	}
}

// ofSandboxes returns a function that lists a word of each sandbox, each word once.
func ofSandboxes(word func(types.Sandbox) string) func(context.Context, *client.Client) ([]string,
	error) {
	return func(ctx context.Context, c *client.Client) (words []string, _ error) {
		boxes, err := c.List(ctx)
		for _, box := range boxes {
			if !slices.Contains(words, word(box)) {
				words = append(words, word(box))
			}
		}
		return words, err
	}
}

// register returns the sandbox's id. For a user, it registers a sandbox that holds what the grants
// need.
func (t target) register(ctx context.Context, c *client.Client, grants []string) (string, error) {
	if t.sandbox != "" {
		return t.sandbox, nil
	}
	id, permissions := needs(t.user, grants)
	return id, put(ctx, c, id, types.Registration{UserID: t.user, Permissions: permissions})
}

// find is register for commands that only look at something or end it: it does not make a new user.
// So it also reports a misspelt name.
func (t target) find(ctx context.Context, c *client.Client, grants []string) (string, error) {
	if t.sandbox != "" {
		return t.sandbox, nil
	}
	id, _ := needs(t.user, grants)
	box, err := c.Get(ctx, id)
	if err == nil && box.UserID != t.user { // alice's with grants may have the name of alice-1a2b3c4d's
		return "", fmt.Errorf("sandbox %q belongs to user %q, not %q: name one with --sandbox", id,
			box.UserID, t.user)
	}
	refused, is := errors.AsType[*client.Error](err)
	if !is || refused.Kind != types.NotFound {
		return id, err
	}
	if _, err := t.ofUser(ctx, c); err != nil {
		return "", err
	}
	return t.register(ctx, c, grants)
}

// ofUser returns the sandboxes of the user, whoever has registered them. It is an error if there is
// none.
func (t target) ofUser(ctx context.Context, c *client.Client) ([]types.Sandbox, error) {
	boxes, err := c.List(ctx)
	if err != nil {
		return nil, err
	}
	boxes = slices.DeleteFunc(boxes, func(box types.Sandbox) bool { return box.UserID != t.user })
	if len(boxes) == 0 {
		return nil, fmt.Errorf(
			"user %q has no sandbox: \"sandbox exec\", \"write\", \"cp\", \"warm\" and \"process start\" register one",
			t.user)
	}
	return boxes, nil
}

// all returns the ids of the sandboxes that register has made for the user, whatever the grants
// were; or the one of --sandbox. It is an error if there is none.
func (t target) all(ctx context.Context, c *client.Client) (ids []string, _ error) {
	if t.sandbox != "" {
		return []string{t.sandbox}, nil
	}
	boxes, err := t.ofUser(ctx, c)
	if err != nil {
		return nil, err
	}
	for _, box := range boxes {
		if rest, is := strings.CutPrefix(box.ID, ownID(t.user)); is && grantsOf.MatchString(rest) {
			ids = append(ids, box.ID)
		}
	}
	if len(ids) == 0 {
		return nil, fmt.Errorf(
			"user %q has no sandbox of this command line: name one with --sandbox", t.user)
	}
	return ids, nil
}

// ownID returns the id of a user's sandbox for calls without grants that need anything of it.
func ownID(user string) string { return "cli-" + user }

// grantsOf matches what needs, registerPersistent and mcpFlags.register put after ownID.
var grantsOf = regexp.MustCompile(`^(-[0-9a-f]{8}(` + ofServers + `|` + ofPersistent + `)?)?$`)

// needs returns the id of a user's sandbox and what it must hold for the grants. The command line
// has its own ids, so that it does not touch other callers' registrations. The id depends on the
// grants, because a registration replaces the one before: with one id for all, a call with fewer
// grants would take away what another call at the same time is about to use.
func needs(user string, grants []string) (id string, p types.Permissions) {
	var special []string
	for _, tag := range grants {
		kind, path := policy.SplitTag(tag)
		switch absolute := strings.HasPrefix(path, "/"); {
		case kind == policy.TagNetwork:
			p.Network = true
		case kind == policy.TagEvents:
			p.Events = true
		case kind == policy.TagWrite && absolute:
			p.WriteDirs = append(p.WriteDirs, path)
		case kind == policy.TagRead && absolute:
			p.ReadDirs = append(p.ReadDirs, path)
		case kind == policy.TagProcess && policy.CheckProcessName(path) == nil:
			p.Processes = append(p.Processes, path)
		case kind == policy.TagSecret && policy.CheckSecretName(path) == nil:
			p.Secrets = append(p.Secrets, path)
		default:
			continue // needs nothing, or is not a tag, which the call reports
		}
		special = append(special, tag)
	}
	id = ownID(user)
	if len(special) == 0 {
		return id, p
	}
	slices.Sort(special)
	return id + hashOf([]byte(strings.Join(slices.Compact(special), "\x00"))), p
}

// grantFlags are the flags for what a call may do and reach.
type grantFlags struct {
	grants            []string
	home              string
	domains, managers []string
	restrictions      types.Restrictions
}

func (w *grantFlags) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringArrayVar(&w.grants, "grant", nil,
		"what the call may do: @workspace, @write:/path, @read:/path, @network, @process:NAME for the ports of a process, @secret:NAME for a credential, or @events (repeatable)")
	flags.StringSliceVar(&w.domains,
		"allow-domain", nil,
		"a name to reach: example.org, '*.example.org' for all below it, or '*' for all names (repeatable; implies @network)")
	flags.StringSliceVar(&w.managers,
		"package-manager", nil, "a preset of names to reach: "+strings.Join(presets(), ", ")+
			", or the operator's own (repeatable; implies @network)")
	flags.StringArrayVar(&w.restrictions.DenyRead, "deny-read", nil,
		"an absolute path to hide from the call, with everything below it (repeatable)")
	flags.StringArrayVar(&w.restrictions.DenyWrite, "deny-write", nil,
		"an absolute path that the call must not write to, nor below it (repeatable)")
	flags.StringSliceVar(&w.restrictions.DeniedDomains, "deny-domain", nil,
		"a name not to reach, whatever --allow-domain and --package-manager say (repeatable)")
	flags.StringVar(&w.home, "home", "",
		"directory for HOME and the like, one that the call may write to")
	tags := []string{policy.TagWorkspace, policy.TagNetwork, policy.TagEvents, policy.TagRead,
		policy.TagWrite, policy.TagProcess, policy.TagSecret}
	_ = cmd.RegisterFlagCompletionFunc("grant",
		func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return tags, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
		})
	for _, flag := range []string{"allow-domain", "deny-domain"} {
		_ = cmd.RegisterFlagCompletionFunc(flag, cobra.NoFileCompletions)
	}
	_ = cmd.RegisterFlagCompletionFunc("package-manager",
		cobra.FixedCompletions(presets(), cobra.ShellCompDirectiveNoFileComp))
}

// presets returns the names of the built-in presets.
func presets() []string { return policy.Presets{}.Names() }

// permissions returns the call's grants. A call that names something to reach also asks for the
// network.
func (w grantFlags) permissions() []string {
	if len(w.domains)+len(w.managers) == 0 || slices.Contains(w.grants, policy.TagNetwork) {
		return w.grants
	}
	return append(slices.Clone(w.grants), policy.TagNetwork)
}

// commandFlags are the flags for how to run a command.
type commandFlags struct {
	grantFlags
	cwd   string
	env   []string
	login bool
}

func (r *commandFlags) flags(cmd *cobra.Command) {
	r.grantFlags.flags(cmd)
	r.howFlags(cmd)
}

// howFlags are those that ask for nothing.
func (r *commandFlags) howFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVarP(&r.cwd, "cwd", "C", "", "directory to run in (default: the working directory)")
	flags.StringArrayVarP(&r.env, "env", "e", nil,
		"NAME=value for the command, or NAME for this shell's value (repeatable)")
	flags.BoolVarP(&r.login, "login", "l", false, "use a login shell")
}

// variables returns the variables of --env.
func (r commandFlags) variables() (map[string]string, error) {
	variables := map[string]string{}
	for _, variable := range r.env {
		name, value, given := strings.Cut(variable, "=")
		if !given {
			if value, given = os.LookupEnv(name); !given {
				return nil, fmt.Errorf("--env %s: no such variable in this shell", name)
			}
		}
		variables[name] = value
	}
	return variables, nil
}

// commandOf returns one argument as a command line, or several as a program with its arguments.
func commandOf(args []string) (command string, argv []string) {
	if len(args) == 1 {
		return args[0], nil
	}
	return "", args
}
