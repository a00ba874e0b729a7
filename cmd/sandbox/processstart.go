package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// startFlags are the flags of `sandbox process start`.
type startFlags struct {
	target
	insideFlags
	commandFlags
	name      string
	secrets   []string
	keepAlive bool
	ready     types.Ready
	expose    []string
	wait      time.Duration
	asJSON    bool
}

func processStartCommand(a *app) *cobra.Command {
	var f startFlags
	cmd := &cobra.Command{
		Use:   "start --user USER [flags] -- COMMAND",
		Short: "Start a process",
		Long: `start starts a process in a user's sandbox and prints its ID. It does not wait for the process to end:
what the process prints is in its log ("sandbox process logs").

One argument is a command line for the shell; several are a program and its arguments. What the process
may do and reach is granted with the flags of "sandbox exec". With --keep-alive it is restarted whenever
it ends by itself: after 2 seconds, and after twice as long each time, up to a minute.

With --ready-port or --ready-command the service checks every half second, inside, whether the process is
ready for its work; "sandbox process get" shows it. With --wait, start waits until the process is ready, and
fails if it ends before that, or if the time is over; then the process keeps running. "sandbox process wait" waits
for its end.

With --persistent, or in a --sandbox that is registered as persistent, the process runs in the one machine in which
"sandbox exec" with the same flags runs, too: at the same localhost, with the same locks and watches of files.

With --expose a port of the process's 127.0.0.1 can be reached at a port of the host's, which is printed after
the ID: the named port, or the first free one of those that the service's settings allow.

A secret's value is taken from this shell's environment, where others do not see it.`,
		Example: `  sandbox process start --user alice --name web --keep-alive -- python3 -m http.server 8000
  sandbox process start --user alice --grant @workspace -C site -- 'npm run dev'
  sandbox process start --user alice --persistent --grant @workspace -C site -- 'npm run dev'
  sandbox process start --user alice --ready-port 3000 --wait 30s --expose 3000 -- 'npm run dev'
  QUEUE_TOKEN=… sandbox process start --user alice --allow-domain queue.example.org --secret QUEUE_TOKEN -- ./worker`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return startProcess(cmd, a, f, args)
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false)
	f.target.flags(a, cmd)
	f.insideFlags.flags(cmd)
	f.commandFlags.flags(cmd)
	flags.StringVarP(&f.name, "name", "n", "", "a name for people, of at most 80 characters")
	flags.BoolVarP(&f.keepAlive, "keep-alive", "k", false, "restart it whenever it ends by itself")
	flags.StringArrayVar(&f.secrets, "secret", nil,
		"NAME of a variable of this shell to pass on; it is never logged, and stored unencrypted only while the process starts (repeatable)")
	flags.IntVar(&f.ready.Port, "ready-port", 0, "a TCP port that it listens at when it is ready")
	flags.StringVar(&f.ready.Command, "ready-command", "",
		"a command line that ends with code 0 when it is ready")
	flags.DurationVar(&f.wait, "wait", 0, "how long to wait until it is ready, such as 30s")
	flags.StringArrayVar(&f.expose, "expose", nil,
		"[HOSTPORT:]PORT of its 127.0.0.1 to make reachable at the host's 127.0.0.1 (repeatable)")
	cmd.MarkFlagsMutuallyExclusive("ready-port", "ready-command")
	for _, flag := range []string{"name", "secret", "ready-port", "ready-command", "wait",
		"expose"} {
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
	id, in, err := f.insideFlags.register(cmd.Context(), c, f.target, f.grantFlags)
	if err != nil {
		return err
	}
	if request.In = in; f.persistent {
		request.Permissions, request.AllowedDomains, request.PackageManagers = nil, nil, nil
	}
	started, err := c.StartProcess(cmd.Context(), id, request)
	if err != nil {
		return err
	}
	if f.wait == 0 {
		return f.tell(cmd, started)
	}
	if !f.asJSON { // already now, for a caller that gives up waiting
		if err := f.tell(cmd, started); err != nil {
			return err
		}
	}
	now, err := awaitReady(cmd.Context(), c, id, started.ID, f.wait)
	if f.asJSON {
		if now.ID != "" {
			started.Process = now
		}
		err = errors.Join(err, f.tell(cmd, started))
	}
	return err
}

// tell prints what was started.
func (f startFlags) tell(cmd *cobra.Command, started types.StartedProcess) error {
	if f.asJSON {
		return printJSON(cmd.OutOrStdout(), started)
	}
	for _, notice := range started.Notices {
		fmt.Fprintf(cmd.ErrOrStderr(), "sandbox: %s\n", printable(notice))
	}
	if _, err := fmt.Fprintln(cmd.OutOrStdout(), started.ID); err != nil {
		return err
	}
	for _, e := range started.Expose {
		if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%s leads to port %d\n", printable(e.Address),
			e.Port); err != nil {
			return err
		}
	}
	return nil
}

// awaitReady waits until a process is ready, and returns its last known state. It returns an error
// if that takes longer than wait, or if the process has ended and will not be restarted.
func awaitReady(ctx context.Context, c *client.Client, sandbox, id string,
	wait time.Duration) (types.Process, error) {
	waited, err := c.WaitProcess(ctx, sandbox, id, client.Wait{Ready: true, Timeout: wait})
	switch p := waited.Process; {
	case err != nil:
		return p, err
	case waited.TimedOut:
		return p, notReady(p, id, wait)
	case p.Ready != nil && p.Ready.OK:
		return p, nil
	default:
		return p, fmt.Errorf(
			"process %s was never ready: it %s%s; see its log: sandbox process logs %s", id,
			p.Status, ending(p), id)
	}
}

// notReady returns the error for a process that was not ready in time.
func notReady(p types.Process, id string, wait time.Duration) error {
	how := "it keeps running"
	switch {
	case p.Status == types.ProcessPaused:
		how = "it is paused with its sandbox"
	case !p.Runs():
		how = fmt.Sprintf("it %s%s, and is started again", p.Status, ending(p))
	case p.Ready != nil && p.Ready.Message != "":
		how = printable(p.Ready.Message) + "; it keeps running"
	}
	return fmt.Errorf("process %s is not ready after %s: %s; see its log: sandbox process logs %s",
		id, wait, how, id)
}

// request turns the flags into a request of the API.
func (f startFlags) request(args []string) (types.StartProcess, error) {
	p := types.StartProcess{
		Name: f.name, KeepAlive: f.keepAlive, Permissions: f.permissions(),
		AllowedDomains: f.domains, PackageManagers: f.managers, Restrictions: f.restrictions,
		Home: f.home, Cwd: f.cwd, Login: f.login, Secrets: map[string]string{},
	}
	p.Command, p.Argv = commandOf(args)
	switch {
	case f.ready != types.Ready{}:
		p.Ready = &f.ready
	case f.wait != 0:
		return p, errors.New(
			"--wait: say how to check that it is ready, with --ready-port or --ready-command")
	}
	if f.wait < 0 {
		return p, fmt.Errorf("--wait %s: it is negative", f.wait)
	}
	var err error
	if p.Expose, err = exposed(f.expose); err != nil {
		return p, err
	}
	if p.Env, err = f.variables(); err != nil {
		return p, err
	}
	for _, name := range f.secrets {
		if before, _, given := strings.Cut(name, "="); given {
			return p, fmt.Errorf(
				"--secret %s=…: give only its name; the value is taken from this shell's environment",
				before)
		}
		value, given := os.LookupEnv(name)
		if !given {
			return p, fmt.Errorf("--secret %s: no such variable in this shell", name)
		}
		p.Secrets[name] = value
	}
	return p, nil
}

// exposed parses the values of --expose.
func exposed(words []string) (ports []types.Expose, _ error) {
	for _, word := range words {
		host, port, both := strings.Cut(word, ":")
		if !both {
			host, port = "0", word
		}
		hostNumber, hostErr := strconv.ParseUint(host, 10, 16)
		number, err := strconv.ParseUint(port, 10, 16)
		if err != nil || hostErr != nil || number == 0 || both && hostNumber == 0 {
			return nil, fmt.Errorf("--expose %s: want PORT or HOSTPORT:PORT, each from 1 to 65535",
				word)
		}
		ports = append(ports, types.Expose{Port: int(number), HostPort: int(hostNumber)})
	}
	return ports, nil
}
