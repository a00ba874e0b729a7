package main

import (
	"context"
	"fmt"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/daycare-run/sandbox/internal/cluster"
	"github.com/daycare-run/sandbox/internal/cluster/fence"
	"github.com/daycare-run/sandbox/internal/cluster/member"
)

// fenceCommand runs the process that holds the host's lease.
func fenceCommand(settings *string) *cobra.Command {
	guard, guardOf := false, 0
	cmd := &cobra.Command{
		Use:   "fence",
		Short: "Hold this host's lease in its cluster, and kill everything that runs when the lease is lost",
		Long: `fence is a process beside the service, for clusters (docs/cluster.md): it holds the host's lease at etcd, so that
the service can be replaced without losing its users. When the lease cannot be renewed in time, the fence kills every
process in users' containers, without asking Docker, before another host takes the users over.

SIGTERM ends only the fence: the next one must start within seconds and goes on with the lease. The fence starts a
second process, its guard, which outlives it and kills at the same deadline. In a container the guard cannot outlive
the fence; there, run fence --guard in a container of its own.`,
		Example: `  sandboxd fence
  sandboxd fence --settings ./settings.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig(*settings)
			if err != nil {
				return err
			}
			if !cfg.Cluster.On() {
				return fmt.Errorf(
					"cannot fence a host that is not in a cluster: cluster.name is empty in the settings")
			}
			_, log := newLogs(cfg.Log, cmd.ErrOrStderr())
			if guard || guardOf != 0 {
				signal.Ignore(syscall.SIGPIPE) // the reader of its log may be gone
				fence.Guard(cmd.Context(), guardOf, member.FenceFiles(cfg), member.FenceGroup(cfg),
					log)
				return nil
			}
			etcd, _, err := member.Dial(cfg.Cluster)
			if err != nil {
				return err
			}
			defer etcd.Close()
			return fence.New(etcd, fence.Config{
				Files: member.FenceFiles(cfg),
				Group: member.FenceGroup(cfg), UsersDir: cfg.UsersDir,
				Remount: cfg.Cluster.RemountCommand, Watchdog: cfg.Cluster.Watchdog, Log: log,
				Killed: func(ctx context.Context, lease int64) error {
					return cluster.Left(ctx, etcd, cfg.Cluster.Name, lease)
				},
				Guard: guardArgs(*settings),
			}).Run(cmd.Context())
		},
	}
	cmd.Flags().BoolVar(&guard, "guard", false,
		"run only the guard, for all fences that run here one after the other")
	cmd.Flags().IntVar(&guardOf, "guard-of", 0, "be the guard of the fence with this process id")
	_ = cmd.Flags().MarkHidden("guard-of") // set only by the fence
	return cmd
}

// guardArgs are the arguments with which the fence starts its guard; the process id is appended.
func guardArgs(settings string) []string {
	args := []string{"fence", "--guard-of"}
	if settings != "" {
		args = append([]string{"--settings", settings}, args...)
	}
	return args
}
