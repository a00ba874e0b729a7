// Package datadir is a service's dataDir: which service holds it, the id by which that service's
// belongings are known, and the keys that outlive it.
package datadir

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/durable"
)

// Dir is a dataDir that this service holds. One service at a time does.
type Dir struct {
	lock     *os.File
	Instance string
}

// InUseError says that another service uses a dataDir.
type InUseError struct{ Dir, PID string }

func (e InUseError) Error() string {
	return fmt.Sprintf("cannot use dataDir %s: the service with pid %s uses it", e.Dir, e.PID)
}

// Open makes dataDir if it is missing and locks it for this service until Close is called or the
// process ends.
func Open(dir string, log zerolog.Logger) (*Dir, error) {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, fmt.Errorf("cannot open dataDir: %w", err)
	}
	lock, err := Lock(dir)
	if err != nil {
		return nil, err
	}
	d := &Dir{lock: lock}
	if err = durable.Sweep(dir); err == nil {
		d.Instance, err = openInstance(dir, log)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot open dataDir: %w", err), lock.Close())
	}
	return d, nil
}

// Lock locks an existing dataDir. An InUseError says who holds it.
func Lock(dir string) (*os.File, error) {
	name := filepath.Join(dir, "lock")
	for {
		lock, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, fmt.Errorf("cannot open dataDir: %w", err)
		}
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err,
			unix.EWOULDBLOCK) {
			holder := make([]byte, 32)
			n, _ := lock.Read(holder)
			return nil, errors.Join(InUseError{dir, strings.TrimSpace(string(holder[:n]))},
				lock.Close())
		} else if err != nil {
			return nil, errors.Join(fmt.Errorf("cannot lock dataDir %s: %w", dir, err),
				lock.Close())
		}
		// A cleanup that has just ended may have removed the file, and a lock on a removed file
		// excludes nobody.
		if same, err := isAt(lock, name); err != nil || !same {
			if err := errors.Join(err, lock.Close()); err != nil {
				return nil, fmt.Errorf("cannot lock dataDir %s: %w", dir, err)
			}
			continue
		}
		if err := errors.Join(lock.Truncate(0), writePid(lock)); err != nil {
			return nil, errors.Join(fmt.Errorf("cannot open dataDir: %w", err), lock.Close())
		}
		return lock, nil
	}
}

func isAt(file *os.File, name string) (bool, error) {
	mine, err := file.Stat()
	if err != nil {
		return false, err
	}
	there, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(mine, there), err
}

func writePid(lock *os.File) error {
	_, err := fmt.Fprintf(lock, "%d\n", os.Getpid())
	return err
}

// instancePattern matches the id by which a service's belongings are known.
var instancePattern = regexp.MustCompile(`^[0-9a-f]{16}$`)

func instanceFile(dir string) string { return filepath.Join(dir, "instance") }

// ReadInstance returns the id of this dataDir's service. The error is fs.ErrNotExist if there is no
// id yet, and errDamaged if the file is damaged.
func ReadInstance(dir string) (string, error) {
	text, err := os.ReadFile(instanceFile(dir))
	if err != nil {
		return "", err
	}
	id := strings.TrimSpace(string(text))
	if !instancePattern.MatchString(id) {
		return "", errDamaged
	}
	return id, nil
}

var errDamaged = errors.New("it should hold 16 hexadecimal digits")

// openInstance is ReadInstance, but makes an id if there is none. Belongings made under a lost id
// also carry the name of this dataDir, and the executor removes them.
func openInstance(dir string, log zerolog.Logger) (string, error) {
	id, err := ReadInstance(dir)
	name := instanceFile(dir)
	switch {
	case err == nil:
		return id, nil
	case errors.Is(err, errDamaged):
		aside := name + ".damaged"
		log.Error().Err(err).Str("file", name).Str("setAside", aside).
			Msg("the service's id is damaged: the service takes another one, and removes what it made under the old one; running commands and processes end, and processes are restarted as their records say")
		if err := os.Rename(name, aside); err != nil {
			return "", err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return "", err
	}
	random := make([]byte, 8)
	_, _ = rand.Read(random) // never fails
	id = hex.EncodeToString(random)
	return id, durable.WriteFile(name, []byte(id+"\n"), 0o600)
}

// Close lets others have the dataDir.
func (d *Dir) Close() { _ = d.lock.Close() }

// SecretSize is the size of the service's own keys in bytes.
const SecretSize = 32

// Secret reads a key that outlives the service, or makes it. A damaged key is an error unless
// mayReplace is set.
func Secret(file string, mayReplace bool) ([]byte, error) {
	secret, err := os.ReadFile(file)
	isDamaged := err == nil && len(secret) != SecretSize
	switch {
	case errors.Is(err, fs.ErrNotExist) || isDamaged && mayReplace:
		secret = make([]byte, SecretSize)
		_, _ = rand.Read(secret) // never fails
		err = durable.WriteFile(file, secret, 0o600)
	case isDamaged:
		err = fmt.Errorf(
			"%s is damaged: it has %d bytes, not %d; put the right file back, or remove it, and another one is made",
			file, len(secret), SecretSize)
	}
	return secret, err
}
