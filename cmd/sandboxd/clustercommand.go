package main

import (
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/daycare-run/sandbox/internal/cluster/forward"
)

// clusterCommand makes the certificates by which hosts know each other.
func clusterCommand() *cobra.Command {
	parent := &cobra.Command{Use: "cluster", Short: "Make the certificates of a cluster's hosts"}
	var dir string
	parent.PersistentFlags().StringVar(&dir, "dir", "/etc/daycare-sandbox/cluster", "folder of the authority and of what it issues")
	parent.AddCommand(&cobra.Command{
		Use:   "init",
		Short: "Make an authority of the cluster's own, and the key that secrets are sealed with",
		Long: `init makes ca.crt, ca.key and sealing.key in a folder, once for a cluster. Whoever has ca.key can make itself a
host of the cluster, so it stays on one machine, or off all of them.`,
		Example: `  sandboxd cluster init
  sandboxd cluster init --dir ./cluster`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := forward.MakeAuthority(dir); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "the authority is in %s: sandboxd cluster issue HOST ADDRESS makes the certificate of a host\n", dir)
			return err
		},
	}, &cobra.Command{
		Use:   "issue HOST ADDRESS",
		Short: "Make the certificate of a host",
		Long: `issue makes HOST.crt and HOST.key, for two years, and says which settings that host needs. The host gets these
two, ca.crt and sealing.key, and not ca.key.`,
		Example: `  sandboxd cluster issue host-1 10.0.0.1
  sandboxd cluster issue host-2 10.0.0.2 --dir ./cluster`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			host := args[0]
			if err := forward.Issue(dir, host, args[1]); err != nil {
				return err
			}
			at := func(name string) string { return filepath.Join(dir, name) }
			_, err := fmt.Fprintf(cmd.OutOrStdout(), `"cluster": {
  "name": %q,
  "etcd": ["https://%s:2379"], // and the other members
  "listen": "%s:7483",
  "caFile": %q,
  "certFile": %q,
  "keyFile": %q,
  "sealingKeyFile": %q
}
`, host, args[1], args[1], at(forward.AuthorityFile), at(host+".crt"), at(host+".key"), at(forward.SealingKeyFile))
			return err
		},
	})
	return parent
}
