package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/caarlos0/env/v10"
	"github.com/spf13/cobra"

	"github.com/daycare-run/sandbox/config"
	"github.com/daycare-run/sandbox/engine"
	"github.com/daycare-run/sandbox/images"
	"github.com/daycare-run/sandbox/version"
)

// defaultSettings is read when it exists and nothing else is named.
const defaultSettings = "/etc/daycare-sandbox/settings.json"

func rootCommand() *cobra.Command {
	var settings string
	root := &cobra.Command{
		Use:   "sandboxd",
		Short: "Run users' commands in gVisor containers of their own",
		Long: `sandboxd runs AI agents' shell commands on this Docker host, each user in gVisor
containers of its own. It listens on a Unix socket; sandbox(1) and the HTTP API drive it.

Settings come from settings.json and from variables: docker.socketPath is also
SANDBOXD_DOCKER_SOCKET_PATH. Everything has a default.`,
		Example: `  sandboxd
  sandboxd --settings ./settings.json
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
			return serve(cmd.Context(), cfg, cmd.ErrOrStderr())
		},
	}
	root.PersistentFlags().StringVarP(&settings, "settings", "s", "", "settings file (default "+defaultSettings+" if it exists)")
	root.AddCommand(imageCommand(&settings), checkCommand(&settings))
	return root
}

// loadConfig reads the settings file that is named by the flag or by SANDBOXD_SETTINGS, or the
// default one if it exists, and then the environment.
func loadConfig(settings string) (config.Config, error) {
	environ := env.ToMap(os.Environ())
	if settings == "" {
		settings = environ["SANDBOXD_SETTINGS"]
	}
	delete(environ, "SANDBOXD_SETTINGS")
	if settings == "" {
		if _, err := os.Stat(defaultSettings); !errors.Is(err, fs.ErrNotExist) {
			settings = defaultSettings
		}
	}
	return config.Load(settings, environ)
}

func checkCommand(settings *string) *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "Check the settings and say what is wrong with them",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig(*settings)
			if err != nil {
				return err
			}
			if _, err := egressRules(cfg); err != nil {
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
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withImage(cmd.Context(), *settings, func(ctx context.Context, i target) error {
				return images.Pull(ctx, i.docker, i.ref, cmd.OutOrStdout())
			})
		},
	}
	show := &cobra.Command{
		Use:   "show",
		Short: "Show which image is used, its id and version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withImage(cmd.Context(), *settings, func(ctx context.Context, i target) error {
				return showImage(ctx, i, cmd.OutOrStdout())
			})
		},
	}
	image.AddCommand(build, pull, show)
	return image
}

// target is the image that settings name, and the engine that has it.
type target struct {
	docker images.Docker
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
