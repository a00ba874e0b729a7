package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
	"github.com/daycare-run/sandbox/internal/cli/man"
	"github.com/daycare-run/sandbox/internal/cli/usage"
	"github.com/daycare-run/sandbox/internal/version"
)

func rootCommand() *cobra.Command {
	a := &app{}
	var wrap wrapFlags
	root := &cobra.Command{
		Use:   "sandbox",
		Short: "Run commands in gVisor sandboxes",
		Long: `sandbox runs commands in a user's gVisor sandbox, keeps durable processes there, and reads and writes
its files, through the service sandboxd. Begin with "sandbox exec"; "sandbox doctor" says what is wrong
when it does not work.

With --settings it is a wrapper: it runs one command in the current directory, under a settings file in
the form of sandbox-runtime (srt). What comes after -- is passed on as it is; a single argument that is
more than a word is a command line for the shell. Stdin, output, signals and the exit code are the command's;
"sandbox exec --help" says which signals, and how Ctrl-C cuts the connection.

  {"filesystem": {"denyRead": [".env"], "allowWrite": ["."], "denyWrite": [".git"]},
   "network": {"allowedDomains": ["*.example.org"], "deniedDomains": ["admin.example.org"]}}

In a user's home below the service's usersDir the command runs in that user's sandbox, and sees the home.
Elsewhere the current directory is mounted at its own path, or at /workspace if the container uses that path
itself; it must be in the setting allowedMountRoots. The command reads it, writes what allowWrite names, and
sees nothing else of the host but the home of its user (--user, or else "wrapper"), at /home. It runs as the
owner of that home, who must have access to the directory's files.

Paths are the host's, also in denyRead of what is in a home; they may begin with ~/ or be relative to the
current directory; a path includes everything below it. allowRead takes a directory back that denyRead would
hide, as a whole. srt's own list of files that are never written does not apply: name them in denyWrite.

Keys that would open more are refused: filesystem.disabled, network.allowUnixSockets, .allowAllUnixSockets,
.mitmProxy, .tlsTerminate and .filterRequest, credentials, allowAppleEvents and enableWeakerNetworkIsolation.
srt's others have no effect, and a warning where that matters: filesystem.allowGitConfig,
network.deniedDomainReasons, .strictAllowlist, .allowLocalBinding, .allowMachLookup, .httpProxyPort,
.socksProxyPort and .parentProxy, enableWeakerNestedSandbox, allowPty, ignoreViolations, ripgrep,
mandatoryDenySearchDepth, seccomp, bwrapPath, socatPath, javaAgentJarPath, windows and git. Any other key is
an error.

FILE may also be the sandbox.json of a durable process: then the command gets what the process was granted.

The service is found at --socket, or $SANDBOX_SOCKET. A service on TCP is found at --url, or $SANDBOX_URL, and
needs the token in --token-file, or $SANDBOX_TOKEN_FILE. The files for TLS may also be named by
$SANDBOX_CA_FILE, $SANDBOX_CERT_FILE and $SANDBOX_KEY_FILE.`,
		Example: `  sandbox exec --user alice -- 'uname -r; id -un'
  sandbox exec --user alice -it
  sandbox exec --user alice --grant @workspace --package-manager node -- npm install
  sandbox --settings settings.json -- npm test
  sandbox --settings settings.json -- 'grep -c error *.log'
  sandbox --url https://sandbox.example.org:7480 --token-file ~/.sandbox-token ps
  sandbox --settings settings.json --env CI=1 --user builder -- make -j4 all`,
		Version: version.String(),
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case wrap.settings != "":
				return runWrapped(cmd, a.client(), wrap, args)
			case cmd.Flags().Changed("settings"):
				return errors.New("--settings is empty: name a file")
			case len(args) > 0:
				return usage.Unknown(cmd, args[0])
			}
			return cmd.Help()
		},
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	a.flags(root)
	wrap.flags(root)
	root.AddCommand(execCommand(a), attachCommand(a), explainCommand(a), warmCommand(a),
		readCommand(a), writeCommand(a), lsCommand(a), cpCommand(a), rmCommand(a), mvCommand(a),
		mkdirCommand(a), statCommand(a), psCommand(a), nodeCommand(a), pauseCommand(a),
		resumeCommand(a), userCommand(a), processCommand(a), credentialCommand(a), egressCommand(a),
		eventsCommand(a), consoleCommand(a), mcpCommand(a), healthCommand(a), doctorCommand(a),
		templateCommand(), versionCommand(a), man.Command("1", "Sandbox commands"))
	return usage.Explain(root)
}

func psCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List the warm containers",
		Long: `ps lists the containers that run commands now or wait for the next one, without those of durable processes. A
container that has been idle for a while is frozen until the next command, and removed after the service's idle
time. Callers who may act for every user also see those of the pool, which wait for new users (--json is
without them).`,
		Example: `  sandbox ps
  sandbox ps --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := a.client().AllContainers(cmd.Context())
			tellUnanswered(cmd, list.Unanswered, "containers")
			return show(cmd, asJSON, list.Containers, err,
				func(out io.Writer, warm []types.Container) error {
					return printContainers(out, warm, list.Pooled)
				})
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func printContainers(out io.Writer, warm []types.Container, pooled []types.PooledContainer) error {
	several := slices.ContainsFunc(warm, func(c types.Container) bool { return c.Node != "" })
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(host, rest string) {
		if several {
			rest = host + "\t" + rest
		}
		fmt.Fprintln(table, rest)
	}
	row("HOST", "USER\tSTATE\tCOMMANDS\tRUNTIME\tUP\tLAST USED\tCONTAINER")
	for _, c := range warm {
		row(c.Node, fmt.Sprintf("%s\t%s\t%d\t%s\t%s\t%s ago\t%s", c.UserID, c.State, c.Commands,
			c.Runtime,
			age(c.CreatedAt), age(c.LastUsedAt), c.Name))
	}
	for _, c := range pooled {
		row(c.Node, fmt.Sprintf("-\t%s\t0\t%s\t%s\t-\t%s", c.State, c.Runtime, age(c.CreatedAt),
			c.Name))
	}
	return table.Flush()
}

// tellUnanswered prints the hosts that are missing in a list because they do not answer.
func tellUnanswered(cmd *cobra.Command, hosts []string, what string) {
	for _, host := range hosts {
		fmt.Fprintf(cmd.ErrOrStderr(), "host %s does not answer: its %s are missing\n", host, what)
	}
}

func age(t time.Time) string { return max(time.Since(t), 0).Round(time.Second).String() }

func healthCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Say whether commands can run, and if not, why",
		Long: `health says whether commands can run now, and which changed settings wait for a restart. It exits with 1
if commands cannot run. "sandbox doctor" looks for what is wrong.`,
		Example: `  sandbox health
  sandbox health --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := a.client().Health(cmd.Context())
			if err = show(cmd, asJSON, h, err, printHealth); err == nil && h.Problem != "" {
				return exitCode(1)
			}
			return err
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func printHealth(out io.Writer, h types.Health) error {
	text := fmt.Sprintf("status:  %s\nversion: %s\nengine:  %s\nruntime: %s\nimage:   %s\n",
		h.Status, h.Version, h.Engine, h.Runtime, h.Image)
	if h.Problem != "" {
		text = fmt.Sprintf("status:  %s\nproblem: %s\n", h.Status, h.Problem)
	}
	if len(h.Settings.Pending) > 0 {
		text += fmt.Sprintf("pending: %s (these settings need a restart)\n",
			strings.Join(h.Settings.Pending, ", "))
	}
	for _, warning := range h.Warnings {
		text += fmt.Sprintf("warning: %s\n", printable(warning))
	}
	_, err := io.WriteString(out, text)
	return err
}

func jsonFlag(cmd *cobra.Command, asJSON *bool) {
	cmd.Flags().BoolVar(asJSON, "json", false, "print JSON")
}

// show prints an answer of the service, as JSON or for a person.
func show[T any](cmd *cobra.Command, asJSON bool, answer T, err error,
	text func(out io.Writer, answer T) error) error {
	switch {
	case err != nil:
		return err
	case asJSON:
		return printJSON(cmd.OutOrStdout(), answer)
	default:
		return text(cmd.OutOrStdout(), answer)
	}
}

// asks completes a command that asks the service about an existing sandbox and shows the answer.
func asks[T any](a *app, t *target, cmd *cobra.Command,
	ask func(ctx context.Context, c *client.Client, id string, args []string) (T, error),
	text func(out io.Writer, answer T) error,
) *cobra.Command {
	var asJSON bool
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return t.with(cmd, a, nil, func(c *client.Client, id string) error {
			answer, err := ask(cmd.Context(), c, id, args)
			return show(cmd, asJSON, answer, err, text)
		})
	}
	t.flags(a, cmd)
	jsonFlag(cmd, &asJSON)
	return cmd
}

func printJSON(out io.Writer, value any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}
