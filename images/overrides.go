package images

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/daycare-run/sandbox/internal/durable"
)

// Overrides makes files that containers of an image get instead of the image's own. Their names
// change with their content. It is safe for concurrent use.
type Overrides struct {
	dir      string
	original Original

	mu       sync.Mutex
	accounts map[[2]uint32]Accounts
	own      map[[sha256.Size]byte]string // files of OwnBundle, by the sum of what is trusted
}

// NewOverrides returns Overrides that keep their files in dir, which must be visible to Docker,
// too.
func NewOverrides(dir string, original Original) *Overrides {
	return &Overrides{dir: dir, original: original, accounts: map[[2]uint32]Accounts{},
		own: map[[sha256.Size]byte]string{}}
}

// Accounts are files on the host, for /etc/passwd and /etc/group. Empty means that the image's own
// will do.
type Accounts struct{ Passwd, Group string }

// ParseCertificates reads certificates in PEM, at least one. Anything else in a block is an error;
// text between blocks, as bundles have it, is not.
func ParseCertificates(text []byte) ([]*x509.Certificate, error) {
	var list []*x509.Certificate
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("block %d is a %q: want certificates alone", len(list)+1,
				block.Type)
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", len(list)+1, err)
		}
		list = append(list, certificate)
	}
	if bytes.Contains(text, []byte("-----BEGIN")) {
		return nil, fmt.Errorf("block %d is damaged", len(list)+1)
	}
	if len(list) == 0 {
		return nil, errors.New("there is no certificate in PEM in it")
	}
	return list, nil
}

// Bundle returns a file on the host with the image's certificates and those of more that it lacks,
// and the file's place inside, where programs of the image look by themselves.
func (o *Overrides) Bundle(more []*x509.Certificate) (source, target string, _ error) {
	source, err := o.store("certificates", o.bundle(more))
	return source, o.bundleAt(), err
}

// bundleAt returns where programs of the image look for certificates.
func (o *Overrides) bundleAt() string { return cmp.Or(o.original.BundleAt, bundles[0]) }

// bundle returns the image's certificates and those of more that it lacks.
func (o *Overrides) bundle(more []*x509.Certificate) []byte {
	text := bytes.Clone(o.original.Bundle)
	if len(text) > 0 && !bytes.HasSuffix(text, []byte("\n")) {
		text = append(text, '\n')
	}
	has := map[[sha256.Size]byte]bool{}
	for rest := text; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		has[sha256.Sum256(block.Bytes)] = true
	}
	for _, c := range more {
		if sum := sha256.Sum256(c.Raw); !has[sum] {
			has[sum] = true
			text = append(text,
				pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
		}
	}
	return text
}

// AccountName is the name of the user that runs commands if the image has no name for its id.
const AccountName = "user"

// Accounts gives a user and a group names, if the image has none for them: some programs, such as
// ssh, do not run for a user without a name.
func (o *Overrides) Accounts(uid, gid uint32) (Accounts, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	made, ok := o.accounts[[2]uint32{uid, gid}]
	if ok {
		return made, nil
	}
	var err error
	if _, named := account(o.original.Passwd, uid); !named {
		made.Passwd, err = o.passwd(uid, gid, "/home")
	}
	if _, named := account(o.original.Group, gid); !named && err == nil {
		made.Group, err = o.group(gid)
	}
	if err == nil {
		o.accounts[[2]uint32{uid, gid}] = made
	}
	return made, err
}

// AccountsAt gives a user and a group the name AccountName, whatever the image calls them, and the
// user a home.
func (o *Overrides) AccountsAt(uid, gid uint32, home string) (made Accounts, err error) {
	if made.Passwd, err = o.passwd(uid, gid, home); err == nil {
		made.Group, err = o.group(gid)
	}
	return made, err
}

// passwd and group return files in which an id has the name AccountName: a lookup takes the first
// line that matches.
func (o *Overrides) passwd(uid, gid uint32, home string) (string, error) {
	shell := "/bin/sh"
	if root, ok := account(o.original.Passwd, 0); ok && len(root) == 7 && root[6] != "" {
		shell = root[6]
	}
	line := fmt.Appendf(nil, "%s:x:%d:%d::%s:%s\n", AccountName, uid, gid, home, shell)
	return o.store("passwd", append(line, o.original.Passwd...))
}

func (o *Overrides) group(gid uint32) (string, error) {
	return o.store("group", append(fmt.Appendf(nil, "%s:x:%d:\n", AccountName, gid),
		o.original.Group...))
}

// account returns the fields of the line with an id, which is the third field in both files.
func account(file []byte, id uint32) (fields []string, ok bool) {
	for line := range strings.Lines(string(file)) {
		fields := strings.Split(strings.TrimRight(line, "\n"), ":")
		if len(fields) > 2 && fields[2] == strconv.FormatUint(uint64(id), 10) {
			return fields, true
		}
	}
	return nil, false
}

// store writes content to a file that is named after it.
func (o *Overrides) store(kind string, content []byte) (string, error) {
	sum := sha256.Sum256(content)
	name := filepath.Join(o.dir, kind+"-"+hex.EncodeToString(sum[:16]))
	if err := durable.Keep(name, content, 0o444); err != nil {
		return "", fmt.Errorf("cannot keep %s of containers: %w", kind, err)
	}
	return name, nil
}
