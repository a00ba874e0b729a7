package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/daycare-run/sandbox/config"
	"github.com/daycare-run/sandbox/images"
	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/cli/man"
	"github.com/daycare-run/sandbox/internal/cli/usage"
	"github.com/daycare-run/sandbox/internal/engine"
	"github.com/daycare-run/sandbox/internal/version"
)

func rootCommand() *cobra.Command {
	var settings string
	root := &cobra.Command{
		Use:   "sandboxd",
		Short: "Run users' commands in their own gVisor containers",
		Long: `sandboxd runs AI agents' shell commands on this Docker host, each user in gVisor
containers of its own. It listens on a Unix socket; sandbox(1) and the HTTP API drive it.

Settings come from settings.json and from variables: docker.socketPath is also
SANDBOXD_DOCKER_SOCKET_PATH. Everything has a default. On SIGHUP it reads the file again, and the file of
tokens: what can change while it runs does so, and the log names what needs a restart; a file with any
fault changes nothing.

SIGTERM or SIGINT stops it: it takes no more calls, gives running commands shutdownGraceMs to end by
themselves, and then ends the rest. A second signal ends them at once. Durable processes keep running.`,
		Example: `  sandboxd
  sandboxd --settings ./settings.json
  sandboxd --version
  sandboxd image build sandbox-image`,
		Version:       version.String(),
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig(settings)
			if err != nil {
				return err
			}
			read := func() (config.Config, error) { return loadConfig(settings) }
			return serve(cmd.Context(), cfg, read, cmd.ErrOrStderr())
		},
	}
	root.PersistentFlags().StringVarP(&settings, "settings", "s", "",
		"settings file (default "+config.DefaultFile+" if it exists)")
	root.AddCommand(imageCommand(&settings), checkCommand(&settings), templateCommand(&settings),
		cleanupCommand(&settings), doctorCommand(&settings), man.Command("8", "Sandbox service"),
		gatewayCommand(), fenceCommand(&settings), clusterCommand(&settings))
	return usage.Explain(root)
}

func loadConfig(settings string) (config.Config, error) {
	cfg, _, err := config.Find(settings, os.Environ(), nil)
	return cfg, err
}

func checkCommand(settings *string) *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "Check the settings and say what is wrong with them",
		Long: `check reads the settings as the service would, and prints all faults, each with its key. It checks nothing
else; "sandbox doctor" checks the host.`,
		Example: `  sandboxd check
  sandboxd check --settings ./settings.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig(*settings)
			if err != nil {
				return err
			}
			if _, err := egressRules(cfg); err != nil {
				return err
			}
			if _, err := readTokens(cfg); err != nil {
				return err
			}
			if _, err := access.Encryption(cfg.TCP.CertFile, cfg.TCP.KeyFile,
				cfg.TCP.ClientCAFile); err != nil {
				return err
			}
			if _, err := certificates(cfg.Egress.CAFile); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "the settings are fine")
			return nil
		},
	}
}

func imageCommand(settings *string) *cobra.Command {
	image := &cobra.Command{
		Use:   "image",
		Short: "Build or pull the image that commands run in",
	}
	var base string
	build := &cobra.Command{
		Use:   "build [DIR]",
		Short: "Build the sandbox image from DIR (default: sandbox-image)",
		Long: `build lets Docker build the Dockerfile in DIR, and gives the result the name in docker.image and
docker.tag. Containers of the previous image are replaced when nobody uses them.`,
		Example: `  sandboxd image build
  sandboxd image build --base debian:trixie-slim sandbox-image`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := "sandbox-image"
			if len(args) == 1 {
				dir = args[0]
			}
			return withImage(cmd.Context(), *settings, func(ctx context.Context, i target) error {
				return images.Build(ctx, i.docker, dir, base, i.ref, cmd.OutOrStdout())
			})
		},
	}
	build.Flags().StringVar(&base, "base", "", "base image (default: the Dockerfile's own)")
	pull := &cobra.Command{
		Use:   "pull",
		Short: "Pull the sandbox image from its registry",
		Long: `pull lets Docker pull the image that docker.image and docker.tag name. Containers of the previous image
are replaced when nobody uses them.`,
		Example: `  sandboxd image pull
  SANDBOXD_DOCKER_IMAGE=registry.example.com/sandbox sandboxd image pull`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withImage(cmd.Context(), *settings, func(ctx context.Context, i target) error {
				return images.Pull(ctx, i.docker, i.ref, cmd.OutOrStdout())
			})
		},
	}
	show := &cobra.Command{
		Use:   "show",
		Short: "Show which image is used, its id and version",
		Long:  "show prints the image that commands run in, as Docker has it now.",
		Example: `  sandboxd image show
  sandboxd image show --settings ./settings.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withImage(cmd.Context(), *settings, func(ctx context.Context, i target) error {
				return showImage(ctx, i, cmd.OutOrStdout())
			})
		},
	}
	image.AddCommand(build, pull, show)
	return image
}

// target is the image that settings name, and the Docker daemon that has it.
type target struct {
	docker *engine.Client
	ref    string
}

func withImage(ctx context.Context, settings string, do func(context.Context, target) error) error {
	cfg, err := loadConfig(settings)
	if err != nil {
		return err
	}
	docker, err := engine.Connect(cfg.Docker.SocketPath)
	if err != nil {
		return err
	}
	defer docker.Close()
	return do(ctx, target{docker: docker, ref: cfg.Docker.Reference()})
}

func showImage(ctx context.Context, i target, out io.Writer) error {
	found, err := images.NewFinder(i.docker, i.ref).Find(ctx)
	if err != nil {
		return err
	}
	version := found.Version
	if version == "" {
		version = "none: not built from this project's Dockerfile"
	}
	_, err = fmt.Fprintf(out, "image:   %s\nid:      %s\nversion: %s\n", i.ref, found.ID, version)
	return err
}
