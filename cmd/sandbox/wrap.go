package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
	"github.com/daycare-run/sandbox/internal/cli/wrapper"
	"github.com/daycare-run/sandbox/internal/hints"
	"github.com/daycare-run/sandbox/internal/policy"
)

// wrapFlags are the flags of `sandbox --settings`.
type wrapFlags struct {
	settings, user string
	timeout        time.Duration
	env            []string
}

// flags adds the flags to the root command, which is the wrapper if --settings is given.
func (f *wrapFlags) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVarP(&f.settings, "settings", "s", "",
		"run one command under a settings file: sandbox --settings FILE -- COMMAND")
	flags.StringVarP(&f.user, "user", "u", "",
		"with --settings: whose sandbox to use outside of all homes (default \""+
			wrapper.DefaultUser+"\")")
	flags.StringArrayVarP(&f.env, "env", "e", nil,
		"with --settings: NAME=value for the command, or NAME for this shell's value (repeatable)")
	flags.DurationVar(&f.timeout, "timeout", 0,
		"with --settings: end the command after this time (default: the most that the service allows, which is 5m unless its settings say otherwise)")
}

// maxSettings is the largest size of a settings file in bytes.
const maxSettings = 1 << 20

// defaultSettings is where the service looks for its settings.
const defaultSettings = "/etc/daycare-sandbox/settings.json"

func runWrapped(cmd *cobra.Command, c *client.Client, f wrapFlags, args []string) error {
	defer c.Close()
	if len(args) == 0 {
		return errors.New("there is no command to run: sandbox --settings FILE -- COMMAND")
	}
	ctx, cancel := context.WithCancelCause(cmd.Context())
	defer cancel(nil)
	signals := relaySignals(ctx, cancel, false)
	text, err := readSettings(f.settings)
	if err != nil {
		return err
	}
	health, err := c.Health(ctx)
	if err != nil {
		return err
	}
	call, err := f.call(text, health)
	if err != nil {
		return err
	}
	for _, warning := range call.Warnings {
		fmt.Fprintln(cmd.ErrOrStderr(), "sandbox: warning:", printable(warning))
	}
	e := call.Exec
	e.Command, e.Argv = wrapper.CommandOf(args)
	if e.Env, err = (commandFlags{env: f.env}).variables(); err != nil {
		return err
	}
	timeout := health.MaxTimeoutMs
	if f.timeout != 0 {
		timeout = f.timeout.Milliseconds()
	}
	e.TimeoutMs = &timeout
	id := wrapID(call.Registration)
	if err := put(ctx, c, id, call.Registration); err != nil {
		return notShown(call.Registration, health.UsersDir, err)
	}
	result, err := c.Attach(ctx, id, e,
		client.Streams{Stdin: pipedInput(cmd.InOrStdin()), Stdout: cmd.OutOrStdout(),
			Stderr: cmd.ErrOrStderr(), Signals: signals})
	err = tooLong(ctx, c, f.timeout, err)
	return conclude(cmd.ErrOrStderr(), result, err, advice{hints.Wrapper, e.DeniedDomains}, false)
}

// call returns the call that the settings ask for here.
func (f wrapFlags) call(text []byte, health types.Health) (wrapper.Call, error) {
	where, err := f.where(health.UsersDir)
	if err != nil {
		return wrapper.Call{}, err
	}
	fail := func(err error) (wrapper.Call, error) {
		return wrapper.Call{}, fmt.Errorf("cannot use the settings %s: %w", f.settings, err)
	}
	if wrapper.IsApplied(text) {
		applied, err := wrapper.ParseApplied(text)
		if err != nil {
			return fail(err)
		}
		call, err := applied.Plan(where, policy.DeniedInHome())
		if err != nil {
			return fail(err)
		}
		return call, nil
	}
	settings, warnings, err := wrapper.Parse(text)
	if err != nil {
		return fail(err)
	}
	call, err := settings.Plan(where)
	if err != nil {
		return fail(err)
	}
	call.Warnings = append(warnings, call.Warnings...)
	return call, nil
}

func readSettings(name string) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("cannot read the settings: %w", err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxSettings+1))
	if err != nil {
		return nil, fmt.Errorf("cannot read the settings: %w", err)
	}
	if len(text) > maxSettings {
		return nil, fmt.Errorf("cannot read the settings: %s has more than %d bytes", name,
			maxSettings)
	}
	return text, nil
}

// where returns everything about this host that is needed to read settings.
func (f wrapFlags) where(usersDir string) (wrapper.Where, error) {
	cwd, err := os.Getwd()
	if err != nil {
		return wrapper.Where{}, fmt.Errorf("cannot find the working directory: %w", err)
	}
	home, err := os.UserHomeDir()
	if err != nil {
		home = "/" // no home is known: ~ is the whole host
	}
	return wrapper.Where{Cwd: realPath(cwd), Home: realPath(home), UsersDir: realPath(usersDir),
		User: f.user, Real: realPath}, nil
}

// realPath resolves the links of a path as far as it exists.
func realPath(name string) string {
	name = filepath.Clean(name)
	for there, rest := name, ""; ; there, rest = filepath.Dir(there),
		filepath.Join(filepath.Base(there), rest) {
		if real, err := filepath.EvalSymlinks(there); err == nil {
			return filepath.Join(real, rest)
		}
		if there == "/" || there == "." {
			return name
		}
	}
}

// wrapID returns the id of the sandbox for a call. Each registration has its own id, since it
// replaces what has the same id.
func wrapID(r types.Registration) string {
	text, _ := json.Marshal(r) // strings and booleans
	return wrapPrefix(r.UserID) + hashOf(text)
}

// notShown adds to a refusal which directories it is about, which the service does not say.
// If they are not allowed, it also says what would allow them.
func notShown(r types.Registration, usersDir string, err error) error {
	refused, is := errors.AsType[*client.Error](err)
	if !is || len(r.Mounts) == 0 {
		return err
	}
	names, roots := "", []string{usersDir}
	for i, m := range r.Mounts {
		names += fmt.Sprintf("; mounts[%d] is %s", i, m.Source)
		roots = append(roots, m.Source)
	}
	if strings.Contains(refused.Message, "allowedMountRoots") {
		value, _ := json.Marshal(roots) // strings
		names += fmt.Sprintf(
			"; to allow it, set \"allowedMountRoots\": %s, with what is in it already, in the settings of the service (%s by default); it takes effect when the service gets SIGHUP",
			value, defaultSettings)
	}
	return fmt.Errorf("%w%s", err, names)
}
