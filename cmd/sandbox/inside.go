package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// insideFlags are the flags for in which container a call runs.
type insideFlags struct {
	persistent bool
	in         string
}

func (i *insideFlags) flags(cmd *cobra.Command) {
	i.inFlag(cmd)
	cmd.Flags().BoolVar(&i.persistent, "persistent", false,
		"use one machine for all calls with the same --grant: what they leave running goes on, and --allow-domain and --package-manager say what it reaches from now on")
	cmd.MarkFlagsMutuallyExclusive("persistent", "in")
	cmd.MarkFlagsMutuallyExclusive("persistent", "sandbox")
}

func (i *insideFlags) inFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&i.in, "in", "",
		"call: a container for the flags of this call; sandbox: that of a persistent --sandbox, with all that it holds (default: sandbox if it is persistent and no other flag asks for anything)")
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

// registerPersistent returns the id of the user's persistent sandbox that holds what the grants
// need. What it reaches is what was asked for last.
func (t target) registerPersistent(ctx context.Context, c *client.Client,
	w grantFlags) (string, error) {
	id, permissions := needs(t.user, w.permissions())
	if id == ownID(t.user) {
		id += hashOf(nil)
	}
	id += ofPersistent
	return id, put(ctx, c, id, types.Registration{UserID: t.user, Permissions: permissions,
		Persistent: true, AllowedDomains: w.domains, PackageManagers: w.managers})
}

// isNothing reports whether no flag asks for anything, or gives anything up.
func (w grantFlags) isNothing() bool {
	r := w.restrictions
	return len(w.grants)+len(w.domains)+len(w.managers)+len(r.DenyRead)+len(r.DenyWrite)+
		len(r.DeniedDomains) == 0 && w.home == ""
}
