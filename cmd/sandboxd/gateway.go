package main

import (
	"github.com/spf13/cobra"

	"github.com/daycare-run/sandbox/internal/egress/gateway"
)

// gatewayCommand is what Docker runs in a network's gateway. Nothing else runs it.
func gatewayCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "gateway CONFIGURATION",
		Short:  "Be the gateway of a network",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := gateway.Parse(args[0])
			if err != nil {
				return err
			}
			return gateway.Serve(cmd.Context(), gateway.SharedDir, cfg)
		},
	}
}
