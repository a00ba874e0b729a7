package policy

import (
	"sync"

	"github.com/daycare-run/sandbox/pathmap"
)

// denied is a path that no call may read or write. The lists are short enough to be read in one go;
// each row says why it is there.
type denied struct {
	path string // relative to the home in homeDenied, absolute in systemDenied
	why  string
	file bool // its programs expect a file there, and take an empty one for none
	mac  bool // only macOS has the directory that it is in
}

// homeDenied are the secrets of a home. The first rows are the well-known ones, the others their
// equivalents: what holds a credential that works elsewhere and that no tool needs to run here.
// .npmrc and .cargo, for example, hold tokens for some users, but settings that tools need for all.
var homeDenied = []denied{
	{path: ".ssh", why: "SSH keys"},
	{path: ".gnupg", why: "GnuPG keys"},
	{path: ".aws", why: "AWS credentials"},
	{path: ".kube", why: "Kubernetes credentials"},
	{path: ".docker", why: "registry credentials"},
	{path: ".netrc", why: "passwords for hosts", file: true},
	{path: "Library/Keychains", why: "macOS keychains", mac: true},
	{path: "Library/Application Support/com.apple.TCC", why: "macOS privacy grants", mac: true},

	{path: ".azure", why: "Azure credentials, like .aws"},
	{path: ".oci", why: "Oracle cloud keys, like .aws"},
	{path: ".config/gcloud", why: "Google cloud credentials, like .aws"},
	{path: ".config/gh", why: "GitHub tokens, like .netrc"},
	{path: ".boto", why: "cloud storage keys, like .aws", file: true},
	{path: ".s3cfg", why: "cloud storage keys, like .aws", file: true},
	{path: ".git-credentials", why: "passwords for hosts, like .netrc", file: true},
	{path: ".pgpass", why: "database passwords, like .netrc", file: true},
	{path: ".my.cnf", why: "database passwords, like .netrc", file: true},
	{path: ".pypirc", why: "upload passwords, like .netrc", file: true},
	{path: ".vault-token", why: "a token for secrets, like .netrc", file: true},
	{path: ".password-store", why: "passwords, like .gnupg"},
}

// systemDenied are the secrets of the system that the image brings.
var systemDenied = []denied{
	{path: "/etc/ssh", why: "SSH host keys"},
	{path: "/etc/sudoers", why: "who may become root", file: true},
	{path: "/etc/shadow", why: "password hashes", file: true},
	{path: "/etc/ssl/private", why: "private keys"},

	{path: "/etc/gshadow", why: "password hashes, like /etc/shadow", file: true},
	{path: "/etc/sudoers.d", why: "who may become root, like /etc/sudoers"},
}

// DeniedInHome returns the denied paths of a home, relative to it.
func DeniedInHome() []string {
	names := make([]string, len(homeDenied))
	for i, row := range homeDenied {
		names[i] = row.path
	}
	return names
}

// deniedRegions returns the rows as regions, made once.
var deniedRegions = sync.OnceValue(func() []Region {
	var regions []Region
	for _, row := range homeDenied {
		regions = append(regions, row.region(child(Home, row.path)))
	}
	for _, row := range systemDenied {
		regions = append(regions, row.region(mustPath(row.path)))
	}
	return regions
})

func (d denied) region(path pathmap.ContainerPath) Region {
	return Region{Path: path, Mode: Hidden, File: d.file, NoParents: d.mac,
		Why: "on the deny list: " + d.why, from: ruled}
}
