package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/daycare-run/sandbox/api/types"
)

// credentialFlags say what a credential is for, and where its value comes from.
type credentialFlags struct {
	preset                         string
	hosts                          []string
	bearer                         bool
	header, template, basic, query string
	methods, paths, users          []string
	env                            string
	valueFile                      string
	keepValue                      bool
}

func credentialSetCommand(a *app) *cobra.Command {
	var f credentialFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "set NAME (--preset PRESET | --host NAME --bearer) [flags]",
		Short: "Register a credential, or change it",
		Long: `set registers a credential, or replaces the one of that name. The value is read from stdin, from --value-file, or
from the terminal, which does not show it; the end of its line is no part of it. It is no argument, because everybody on the
host can read those.

It says to which hosts the value goes, and how: as a bearer token, in another header, as a password of Basic
authentication, or in a query parameter. A preset says both, and further flags say it differently. --method, --path
and --user are for a part of the requests, or of the users; without them it is for all.

With --keep-value the value stays, and the rest is what the flags say; it has to go to no further hosts, and into the
same place. A change counts from the next request on, also for commands that run.`,
		Example: `  sandbox credential set github --preset github
  pass show github | sandbox credential set reader --preset github --method GET --path /repos/example/app --user alice
  sandbox credential set git --host github.com --basic x-access-token --value-file token
  sandbox credential set search --host '*.example.org' --header X-Api-Key --env SEARCH_KEY --value-file key
  sandbox credential set search --host search.example.org --header X-Api-Key --keep-value --user alice`,
		Args:              nameAlone,
		ValidArgsFunction: a.completeCredentials(),
		RunE: func(cmd *cobra.Command, args []string) error {
			terms, err := f.terms(cmd.Flags().Changed("env"))
			if err != nil {
				return err
			}
			value, err := f.value(cmd, args[0])
			if err != nil {
				return err
			}
			c := a.client()
			defer c.Close()
			set, err := c.PutCredential(cmd.Context(), args[0],
				types.PutCredential{CredentialTerms: terms, Value: value})
			return show(cmd, asJSON, set, err, printSet)
		},
	}
	f.flags(a, cmd)
	jsonFlag(cmd, &asJSON)
	return cmd
}

// nameAlone refuses a value among the arguments.
func nameAlone(cmd *cobra.Command, args []string) error {
	if len(args) > 1 {
		return errors.New(
			"a name is all that is taken here; the value comes from stdin or from --value-file")
	}
	return cobra.ExactArgs(1)(cmd, args)
}

func (f *credentialFlags) flags(a *app, cmd *cobra.Command) {
	flags := cmd.Flags()
	known := slices.Sorted(maps.Keys(credentialPresets))
	flags.StringVar(&f.preset, "preset", "",
		"hosts, place and variable of what is used often: "+strings.Join(known, ", "))
	flags.StringSliceVar(&f.hosts, "host", nil,
		"a name whose requests get the value: api.example.org, or '*.example.org' for all below it (repeatable)")
	flags.BoolVar(&f.bearer, "bearer", false, "put the value in as Authorization: Bearer VALUE")
	flags.StringVar(&f.header, "header", "", "put the value in as this header")
	flags.StringVar(&f.template, "template", "",
		"what the header is set to, with {secret} for the value (default: the value alone)")
	flags.StringVar(&f.basic, "basic", "",
		"put the value in as the password of this user, with Basic authentication")
	flags.StringVar(&f.query, "query", "", "put the value in as this query parameter")
	flags.StringSliceVar(&f.methods, "method", nil,
		"a method of the requests that get the value, such as GET, which includes HEAD (repeatable)")
	flags.StringArrayVar(&f.paths, "path", nil,
		"a path whose requests get the value, with all below it, such as /repos/example (repeatable)")
	flags.StringSliceVar(&f.users, "user", nil, "a user who may have the credential (repeatable)")
	flags.StringVar(&f.env, "env", "",
		"the variable that has the placeholder inside, such as GITHUB_TOKEN")
	flags.StringVar(&f.valueFile, "value-file", "", "the file that has the value, instead of stdin")
	flags.BoolVar(&f.keepValue, "keep-value", false, "keep the value that there is")
	cmd.MarkFlagsMutuallyExclusive("bearer", "header", "basic", "query")
	cmd.MarkFlagsMutuallyExclusive("value-file", "keep-value")
	_ = cmd.RegisterFlagCompletionFunc("preset",
		cobra.FixedCompletions(known, cobra.ShellCompDirectiveNoFileComp))
	for _, flag := range []string{"host", "header", "template", "basic", "query", "method", "path",
		"env"} {
		_ = cmd.RegisterFlagCompletionFunc(flag, cobra.NoFileCompletions)
	}
	a.completeUsers(cmd)
}

var bearerPlace = types.CredentialPlace{Header: "Authorization", Template: "Bearer {secret}"}

// credentialPresets are the terms of what is used often, by the name of the preset.
var credentialPresets = map[string]types.CredentialTerms{
	"anthropic": {
		Hosts:           []string{"api.anthropic.com"},
		CredentialPlace: types.CredentialPlace{Header: "X-Api-Key", Template: "{secret}"},
		Env:             "ANTHROPIC_API_KEY",
	},
	"github": {
		Hosts: []string{"api.github.com"}, CredentialPlace: bearerPlace, Env: "GITHUB_TOKEN",
	},
	"gitlab": {
		Hosts:           []string{"gitlab.com"},
		CredentialPlace: types.CredentialPlace{Header: "Private-Token", Template: "{secret}"},
		Env:             "GITLAB_TOKEN",
	},
	"huggingface": {
		Hosts: []string{"huggingface.co"}, CredentialPlace: bearerPlace, Env: "HF_TOKEN",
	},
	"npm": {
		Hosts: []string{"registry.npmjs.org"}, CredentialPlace: bearerPlace, Env: "NPM_TOKEN",
	},
	"openai": {
		Hosts: []string{"api.openai.com"}, CredentialPlace: bearerPlace, Env: "OPENAI_API_KEY",
	},
	"pypi": {
		Hosts:           []string{"upload.pypi.org"},
		CredentialPlace: types.CredentialPlace{Basic: "__token__"},
		Env:             "TWINE_PASSWORD",
	},
}

// terms returns what the flags say: that of the preset, unless another flag says it differently.
func (f *credentialFlags) terms(envGiven bool) (types.CredentialTerms, error) {
	t, known := credentialPresets[f.preset]
	if f.preset != "" && !known {
		return t, fmt.Errorf("--preset %s is not known: it is one of %s", f.preset,
			strings.Join(slices.Sorted(maps.Keys(credentialPresets)), ", "))
	}
	if len(f.hosts) > 0 {
		t.Hosts = f.hosts
	}
	switch {
	case f.bearer:
		t.CredentialPlace = bearerPlace
	case f.header != "":
		t.CredentialPlace = types.CredentialPlace{Header: f.header, Template: "{secret}"}
	case f.basic != "":
		t.CredentialPlace = types.CredentialPlace{Basic: f.basic}
	case f.query != "":
		t.CredentialPlace = types.CredentialPlace{Query: f.query}
	}
	if f.template != "" {
		t.Template = f.template
	}
	if envGiven {
		t.Env = f.env
	}
	t.Methods, t.Paths, t.Users = f.methods, f.paths, f.users
	switch {
	case len(t.Hosts) == 0:
		return t, errors.New("where the value goes is not clear: give --host or --preset")
	case t.CredentialPlace == types.CredentialPlace{}:
		return t, errors.New(
			"how the value is put in is not clear: give --bearer, --header, --basic, --query or --preset")
	}
	return t, nil
}

// value returns the credential's value; nil to keep the one that there is.
func (f *credentialFlags) value(cmd *cobra.Command, name string) (*string, error) {
	if f.keepValue {
		return nil, nil
	}
	if f.valueFile != "" {
		file, err := os.Open(f.valueFile)
		if err != nil {
			return nil, fmt.Errorf("cannot read the value: %w", err)
		}
		defer file.Close()
		return readValue(file)
	}
	if terminal, err := terminalOf(cmd.InOrStdin()); err == nil {
		return typedValue(cmd.Context(), terminal, "Value of "+name+": ", cmd.ErrOrStderr())
	}
	return readValue(cmd.InOrStdin())
}

// maxValue is the longest value that the service takes, in bytes.
const maxValue = 16 << 10

// readValue reads a value, without the end of its line.
func readValue(in io.Reader) (*string, error) {
	text, err := io.ReadAll(io.LimitReader(in, maxValue+3)) // with the end of its line, and more
	if err != nil {
		return nil, fmt.Errorf("cannot read the value: %w", err)
	}
	value := strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r")
	switch {
	case value == "":
		return nil, errors.New("the value is empty: pass it on stdin, or name its file with --value-file")
	case len(value) > maxValue:
		return nil, fmt.Errorf("the value has more than %d bytes, which is the most", maxValue)
	}
	return &value, nil
}

func printSet(out io.Writer, c types.Credential) error {
	_, err := fmt.Fprintf(out, "%s is set for %s; a call asks for it with --grant @secret:%[1]s\n",
		printable(c.Name), joined(c.Hosts))
	return err
}
