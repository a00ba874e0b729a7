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
	"github.com/daycare-run/sandbox/internal/cli/probes"
	"github.com/daycare-run/sandbox/internal/cluster/forward"
	"github.com/daycare-run/sandbox/internal/cluster/member"
)

// hostFolder is the default folder for a host's cluster files.
const hostFolder = "/etc/daycare-sandbox/cluster"

// clusterCommand makes the certificates with which hosts authenticate to each other.
func clusterCommand(settings *string) *cobra.Command {
	parent := &cobra.Command{Use: "cluster",
		Short: "Make certificates for a cluster's hosts, and let a host join"}
	var dir string
	parent.PersistentFlags().StringVar(&dir, "dir", hostFolder,
		"folder of the authority and of what it issues")
	parent.AddCommand(&cobra.Command{
		Use:   "init",
		Short: "Make the cluster's own certificate authority, and the key that secrets are sealed with",
		Long: `init makes ca.crt, ca.key and sealing.key in a folder, once for a cluster. A machine that has ca.key can make itself
a host of the cluster, so keep the key on one machine, or off all of them.`,
		Example: `  sandboxd cluster init
  sandboxd cluster init --dir ./cluster`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := forward.MakeAuthority(dir); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(),
				"the authority is in %s: sandboxd cluster issue HOST ADDRESS makes the certificate of a host\n",
				dir)
			return err
		},
	}, &cobra.Command{
		Use:   "issue HOST ADDRESS",
		Short: "Make the certificate of a host",
		Long: `issue makes HOST.crt and HOST.key, for two years, and says which settings that host needs. The host gets these
two, ca.crt and sealing.key, but not ca.key. To make a new certificate, remove the two old files first, and restart the
host's sandboxd and fence afterwards.`,
		Example: `  sandboxd cluster issue host-1 10.0.0.1
  sandboxd cluster issue host-2 10.0.0.2 --dir ./cluster`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			host, address := args[0], args[1]
			c := clusterOf(host, address, hostFolder, nil)
			settings, err := config.SetCluster(nil, c) // it checks name and address
			if err != nil {
				return fmt.Errorf("cannot make a certificate: %w", err)
			}
			if err := forward.Issue(dir, host, address); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), `%[1]s.crt and %[1]s.key are in %[2]s. Bring them to the host, with %[3]s and %[4]s, in %[5]s, and run there
  sandboxd cluster join %[1]s %[6]s --etcd %[7]s,…
which writes these settings, with all members of etcd:
%[8]s`, host, dir, forward.AuthorityFile, forward.SealingKeyFile, hostFolder, address, c.Etcd[0], settings)
			return err
		},
	}, joinCommand(settings, &dir))
	return parent
}

// clusterOf returns the settings of a host whose files are in folder. Without etcd addresses, an
// etcd member runs on the host itself.
func clusterOf(host, address, folder string, etcd []string) config.Cluster {
	at := func(name string) string { return filepath.Join(folder, name) }
	if len(etcd) == 0 {
		etcd = []string{"https://" + net.JoinHostPort(address, "2379")}
	}
	return config.Cluster{
		Name: host, Etcd: etcd, Listen: net.JoinHostPort(address, "7483"),
		CAFile: at(forward.AuthorityFile), CertFile: at(host + ".crt"),
		KeyFile: at(host + ".key"), SealingKeyFile: at(forward.SealingKeyFile),
	}
}

// joinCommand writes the cluster settings of a host.
func joinCommand(settings, dir *string) *cobra.Command {
	var etcd []string
	cmd := &cobra.Command{
		Use:   "join HOST ADDRESS",
		Short: "Write the settings that make this host a member of the cluster",
		Long: `join checks the certificates in the folder, which issue has made and which were brought here, and puts cluster into
the settings file. If the folder has the authority, join makes the certificates itself. It overwrites nothing. Afterwards
(re)start sandboxd and its fence.`,
		Example: `  sudo sandboxd cluster join host-1 10.0.0.1 --etcd https://10.0.0.1:2379,https://10.0.0.2:2379,https://10.0.0.3:2379`,
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			folder, err := filepath.Abs(*dir)
			if err != nil {
				return err
			}
			c := clusterOf(args[0], args[1], folder, etcd)
			err = editSettings(*settings, true, func(text []byte) ([]byte, error) {
				text, err := config.SetCluster(text, c) // it checks the host's name
				if err == nil {
					err = certified(c, folder, args[1])
				}
				return text, err
			})
			if err == nil {
				_, err = fmt.Fprintf(cmd.OutOrStdout(),
					"the settings make host %s a member of the cluster: (re)start sandboxd and its fence\n",
					c.Name)
			}
			return err
		},
	}
	cmd.Flags().StringSliceVar(&etcd, "etcd", nil,
		"addresses of etcd's members (default https://ADDRESS:2379)")
	return cmd
}

// certified makes sure that a host has its certificates. It creates them if the authority's key is
// here.
func certified(c config.Cluster, folder, address string) error {
	if _, err := os.Stat(c.CertFile); errors.Is(err, fs.ErrNotExist) {
		err := forward.Issue(folder, c.Name, address)
		if errors.Is(err, fs.ErrNotExist) { // the authority's key is on another machine
			return fmt.Errorf(
				"there is no %s: sandboxd cluster issue %s %s makes it where the authority is; bring it here with its key, %s and %s",
				c.CertFile, c.Name, address, forward.AuthorityFile, forward.SealingKeyFile)
		}
		if err != nil {
			return err
		}
	}
	if _, err := member.ReadSealingKey(c.SealingKeyFile); err != nil {
		return err
	}
	_, err := probes.Expiry(c)
	return err
}
