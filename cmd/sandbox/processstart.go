package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/daycare-run/sandbox/api/apitypes"
)

// startFlags are what `sandbox process start` takes.
type startFlags struct {
	target
	runs
	name      string
	secrets   []string
	keepAlive bool
	asJSON    bool
}

func processStartCommand(a *app) *cobra.Command {
	var f startFlags
	cmd := &cobra.Command{
		Use:   "start --user USER [flags] -- COMMAND",
		Short: "Start a process",
		Long: `start starts a process in a user's sandbox and prints its ID. It does not wait for the process to end:
what that prints is in its log ("sandbox process logs").

One argument is a command line for the shell; several are a program and its arguments. What the process
may do and reach is granted with the flags of "sandbox exec". With --keep-alive it is started again
whenever it ends by itself: after 2 seconds, and after twice as long each time, up to a minute.

A secret's value is taken from this shell's environment, where others do not see it.`,
		Example: `  sandbox process start --user alice --name web --keep-alive -- python3 -m http.server 8000
  sandbox process start --user alice --grant @workspace -C site -- 'npm run dev'
  QUEUE_TOKEN=… sandbox process start --user alice --allow-domain queue.example.org --secret QUEUE_TOKEN -- ./worker`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return startProcess(cmd, a, f, args) },
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false)
	f.target.flags(a, cmd)
	f.runs.flags(cmd)
	flags.StringVarP(&f.name, "name", "n", "", "a name for people, of at most 80 characters")
	flags.BoolVarP(&f.keepAlive, "keep-alive", "k", false, "start it again whenever it ends by itself")
	flags.StringArrayVar(&f.secrets, "secret", nil, "NAME of a variable of this shell to pass on; it is never logged, nor on disk in clear (repeatable)")
	for _, flag := range []string{"name", "secret"} {
		_ = cmd.RegisterFlagCompletionFunc(flag, cobra.NoFileCompletions)
	}
	jsonFlag(cmd, &f.asJSON)
	return cmd
}

func startProcess(cmd *cobra.Command, a *app, f startFlags, args []string) error {
	request, err := f.request(args)
	if err != nil {
		return err
	}
	c := a.client()
	defer c.Close()
	id, err := f.register(cmd.Context(), c, f.permissions())
	if err != nil {
		return err
	}
	started, err := c.StartProcess(cmd.Context(), id, request)
	if err != nil {
		return err
	}
	if f.asJSON {
		return printJSON(cmd.OutOrStdout(), started)
	}
	for _, notice := range started.Notices {
		fmt.Fprintf(cmd.ErrOrStderr(), "sandbox: %s\n", printable(notice))
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), started.ID)
	return err
}

// request turns the flags into what the API takes.
func (f startFlags) request(args []string) (apitypes.StartProcess, error) {
	p := apitypes.StartProcess{
		Name: f.name, KeepAlive: f.keepAlive, Permissions: f.permissions(), AllowedDomains: f.domains,
		PackageManagers: f.managers, Restrictions: f.less, Home: f.home, Cwd: f.cwd, Login: f.login, Secrets: map[string]string{},
	}
	p.Command, p.Argv = commandOf(args)
	var err error
	if p.Env, err = f.variables(); err != nil {
		return p, err
	}
	for _, name := range f.secrets {
		if before, _, given := strings.Cut(name, "="); given {
			return p, fmt.Errorf("--secret %s=…: give its name alone; the value is taken from this shell's environment", before)
		}
		value, given := os.LookupEnv(name)
		if !given {
			return p, fmt.Errorf("--secret %s: no such variable in this shell", name)
		}
		p.Secrets[name] = value
	}
	return p, nil
}
