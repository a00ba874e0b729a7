package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/daycare-run/sandbox/config"
	"github.com/daycare-run/sandbox/internal/cluster/forward"
)

// clusterCommand makes the certificates by which hosts know each other.
func clusterCommand(settings *string) *cobra.Command {
	parent := &cobra.Command{Use: "cluster", Short: "Make certificates of a cluster's hosts, and have a host join it"}
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
	}, joinCommand(settings, &dir))
	return parent
}

// joinCommand writes a host's settings.
func joinCommand(settings, dir *string) *cobra.Command {
	var etcd []string
	cmd := &cobra.Command{
		Use:   "join HOST ADDRESS",
		Short: "Write the settings by which this host is one of the cluster",
		Long: `join looks at the certificates in the folder, which issue has made and which were brought here, and puts cluster into
the settings file. Where the folder has the authority, it makes them. Nothing that is there is overwritten. sandboxd and its
fence have to be started (again) then.`,
		Example: `  sudo sandboxd cluster join host-1 10.0.0.1 --etcd https://10.0.0.1:2379,https://10.0.0.2:2379,https://10.0.0.3:2379`,
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			folder, err := filepath.Abs(*dir)
			if err != nil {
				return err
			}
			at := func(name string) string { return filepath.Join(folder, name) }
			if len(etcd) == 0 {
				etcd = []string{"https://" + net.JoinHostPort(args[1], "2379")}
			}
			c := config.Cluster{
				Name: args[0], Etcd: etcd, Listen: net.JoinHostPort(args[1], "7483"), CAFile: at(forward.AuthorityFile), CertFile: at(args[0] + ".crt"),
				KeyFile: at(args[0] + ".key"), SealingKeyFile: at(forward.SealingKeyFile),
			}
			return editSettings(*settings, true, func(text []byte) ([]byte, error) {
				text, err := config.SetCluster(text, c) // it knows what a name of a host is
				if err == nil {
					err = certified(c, folder, args[1])
				}
				return text, err
			})
		},
	}
	cmd.Flags().StringSliceVar(&etcd, "etcd", nil, "addresses of etcd's members (default https://ADDRESS:2379)")
	return cmd
}

// certified makes sure that a host has its certificates, and makes them where the authority is.
func certified(c config.Cluster, folder, address string) error {
	if _, err := os.Stat(c.CertFile); errors.Is(err, fs.ErrNotExist) {
		if err := forward.Issue(folder, c.Name, address); err != nil {
			return fmt.Errorf("there is no %s: sandboxd cluster issue %s %s makes it where the authority is: %w", c.CertFile, c.Name, address, err)
		}
	}
	if _, err := readSealingKey(c.SealingKeyFile); err != nil {
		return err
	}
	_, err := (&clusterDoctor{cfg: config.Config{Cluster: c}}).expiry()
	return err
}
