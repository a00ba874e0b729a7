package main

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
	"github.com/daycare-run/sandbox/internal/policy"
)

// insideFlags are the flags for in which container a call runs.
type insideFlags struct {
	persistent bool
	in         string
}

func (i *insideFlags) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&i.persistent, "persistent", false,
		"use one machine for all calls with the same --grant, @workspace among them: what they leave running goes on; --allow-domain and --package-manager say what it reaches from now on")
	cmd.Flags().StringVar(&i.in, "in", "",
		"call: a container for the flags of this call; sandbox: that of a persistent --sandbox, with all that it holds (default: sandbox if it is persistent and no other flag asks for anything)")
	cmd.MarkFlagsMutuallyExclusive("persistent", "in")
	cmd.MarkFlagsMutuallyExclusive("persistent", "sandbox")
	_ = cmd.RegisterFlagCompletionFunc("in", cobra.FixedCompletions(
		[]string{string(types.InCall), string(types.InSandbox)}, cobra.ShellCompDirectiveNoFileComp))
}

// register returns the id of the call's sandbox, which it registers for a user, and where the call
// runs.
func (i insideFlags) register(ctx context.Context, c *client.Client, t target,
	w grantFlags) (id string, in types.In, err error) {
	if i.persistent {
		id, err = t.registerPersistent(ctx, c, w)
		return id, types.InSandbox, err
	}
	if in, err = i.where(ctx, c, t, w); err == nil {
		id, err = t.register(ctx, c, w.permissions())
	}
	return id, in, err
}

// with is target.with for a command that only looks at a sandbox, where a call may run inside it. Then
// w asks for nothing more.
func (i insideFlags) with(cmd *cobra.Command, a *app, t target, w *grantFlags,
	do func(c *client.Client, id string, in types.In) error) error {
	if i.persistent {
		c := a.client()
		defer c.Close()
		if err := w.checkPersistent(); err != nil {
			return err
		}
		id := persistentID(t.user, w.grants) + ofPersistent
		*w = grantFlags{}
		return do(c, id, types.InSandbox)
	}
	return t.with(cmd, a, w.permissions(), func(c *client.Client, id string) error {
		in, err := i.where(cmd.Context(), c, t, *w)
		if err != nil {
			return err
		}
		return do(c, id, in)
	})
}

// where returns where a call runs in a sandbox that is registered already.
func (i insideFlags) where(ctx context.Context, c *client.Client, t target,
	w grantFlags) (types.In, error) {
	switch {
	case i.in == string(types.InSandbox) && t.sandbox == "":
		return "", errors.New(
			"--in sandbox needs --sandbox: with --user, say --persistent; the user's other sandboxes are made for single calls")
	case i.in != "" || t.sandbox == "" || !w.isNothing():
		return types.In(i.in), nil
	}
	box, err := c.Get(ctx, t.sandbox)
	if err == nil && box.Persistent {
		return types.InSandbox, nil
	}
	return "", err
}

// ofPersistent ends the ids of persistent sandboxes, which do not make room for others: something
// may run there.
const ofPersistent = "-persistent"

// registerPersistent returns the id of the user's persistent sandbox that holds the grants. What it
// reaches stays as it is, unless the flags say.
func (t target) registerPersistent(ctx context.Context, c *client.Client,
	w grantFlags) (string, error) {
	if err := w.checkPersistent(); err != nil {
		return "", err
	}
	id := persistentID(t.user, w.grants) + ofPersistent
	if len(w.domains)+len(w.managers) == 0 {
		if box, err := c.Get(ctx, id); err == nil && box.Persistent && box.UserID == t.user {
			return id, nil
		}
	}
	return id, put(ctx, c, id, w.persistent(t.user))
}

// persistentID returns the beginning of the id of a persistent sandbox. Names do not count among
// the grants, as they can be changed.
func persistentID(user string, grants []string, more ...string) string {
	grants = slices.DeleteFunc(slices.Clone(grants), func(tag string) bool {
		return tag == policy.TagNetwork
	})
	slices.Sort(grants)
	all := append([]string{"persistent"}, append(slices.Compact(grants), more...)...)
	return ownID(user) + hashOf([]byte(strings.Join(all, "\x00")))
}

// persistent returns what is registered for a persistent sandbox. It has a network, on which it
// reaches nothing but the names.
func (w grantFlags) persistent(user string) types.Registration {
	_, permissions := needs(user, w.grants)
	permissions.Network = true
	return types.Registration{UserID: user, Permissions: permissions, Persistent: true,
		AllowedDomains: w.domains, PackageManagers: w.managers}
}

// checkPersistent refuses what a persistent sandbox cannot do.
func (w grantFlags) checkPersistent() error {
	r := w.restrictions
	switch {
	case !slices.Contains(w.grants, policy.TagWorkspace):
		return errors.New(
			"--persistent needs --grant @workspace, too: such a sandbox always writes to its working directory")
	case len(r.DenyRead)+len(r.DenyWrite)+len(r.DeniedDomains) > 0 || w.home != "":
		return errors.New(
			"--persistent goes with no --deny-read, --deny-write, --deny-domain and --home: they are for a call with a container of its own")
	case slices.ContainsFunc(w.grants, func(tag string) bool {
		return strings.HasPrefix(tag, policy.TagProcess)
	}):
		return errors.New(
			"--persistent goes with no --grant @process: it is for a call with a container of its own; start the process with --persistent, too, and it is at localhost")
	case slices.ContainsFunc(w.grants, func(tag string) bool {
		return strings.HasPrefix(tag, policy.TagSecret)
	}):
		return errors.New(
			"--persistent goes with no --grant @secret: it is for a call with a container of its own")
	}
	return checkTags(w.grants)
}

// isNothing reports whether no flag asks for anything, or gives anything up.
func (w grantFlags) isNothing() bool {
	r := w.restrictions
	return len(w.grants)+len(w.domains)+len(w.managers)+len(r.DenyRead)+len(r.DenyWrite)+
		len(r.DeniedDomains) == 0 && w.home == ""
}
