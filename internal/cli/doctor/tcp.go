package doctor

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"time"
)

// Program is a process on this host.
type Program struct {
	Name string
	PID  int
}

func (p Program) String() string { return fmt.Sprintf("%s (pid %d)", p.Name, p.PID) }

// TCPAddress reports whether the service can listen at the address of a setting, or does. service
// is its pid; 0 if it does not run. try listens at the address and stops, and holder finds the
// program that has the address.
func TCPAddress(setting, address string, service int, try func() error,
	holder func() (Program, error)) Check {
	return Check{setting, func(context.Context) Finding {
		err := try()
		switch {
		case err == nil && service != 0:
			return warning("start the service again: "+setting+" is read when it starts",
				"the service (pid %d) does not listen at %s", service, address)
		case err == nil:
			return ok("%s is free", address)
		case errors.Is(err, syscall.EADDRNOTAVAIL):
			return wrong("set "+setting+
				" to an address of this host, or to a port on all of them, such as :7480",
				"%s is not an address of this host", address)
		case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
			return skipped("only root may listen at %s", address)
		case !errors.Is(err, syscall.EADDRINUSE):
			return wrong("set "+setting+" to an address where the service can listen", "%v", err)
		}
		who, err := holder()
		switch {
		case errors.Is(err, fs.ErrPermission):
			return skipped("only root may see who listens at %s", address)
		case err != nil:
			return wrong("stop it, or set "+setting+" to another port",
				"another program listens at %s: %v", address, err)
		case who.PID == service:
			return ok("%s listens at %s", who, address)
		default:
			return wrong("stop it, or set "+setting+" to another port", "%s listens at %s", who,
				address)
		}
	}}
}

// TCPTokens reports whether the service could read its tokens. read reads them as the service
// would.
func TCPTokens(path string, read func() error) Check {
	return Check{"tcp.tokensFile", func(context.Context) Finding {
		err := read()
		switch {
		case errors.Is(err, fs.ErrPermission):
			return skipped("only the owner of %s may read it", path)
		case err != nil:
			return wrong(
				"correct it, and send the service SIGHUP (systemctl reload sandboxd): until then it uses the earlier tokens, and would not start again",
				"%v", err)
		default:
			return ok("%s", path)
		}
	}}
}

// Certificate is the service's certificate, and the files that it is read from. What it needs of
// the host are functions, because the check asks when it runs.
type Certificate struct {
	File, KeyFile string
	// Load reads the certificate as the service would, with its key and the authorities of callers.
	Load func() (*x509.Certificate, error)
	// Shown returns the certificate that the service presents now; nil if the service does not run.
	Shown func(context.Context) (*x509.Certificate, error)
	Look  func(path string) (Place, error)
	Now   time.Time
}

// soon is how long before a certificate's end there is a warning; a quarter of its lifetime if that
// is less.
const soon = 14 * 24 * time.Hour

// Valid reports whether callers can trust the certificate, and whether only the service can read
// its key.
func (c Certificate) Valid() Check {
	return Check{"tcp.certFile", func(ctx context.Context) Finding {
		const renew = "put a new one in its place, and start the service again"
		certificate, err := c.Load()
		if errors.Is(err, fs.ErrPermission) {
			return skipped("only the owner of %s may read it", c.KeyFile)
		} else if err != nil {
			return wrong("name a certificate and the key that belongs to it, both PEM", "%v", err)
		}
		// A group may read the key: there are groups for that.
		if key, err := c.Look(c.KeyFile); err == nil && key.Mode.Perm()&0o027 != 0 {
			return wrong("chmod 600 "+c.KeyFile+", and if others may have read it, get another key",
				"others may open the key %s (mode %04o)", c.KeyFile, key.Mode.Perm())
		}
		now, from, to := c.Now, certificate.NotBefore, certificate.NotAfter
		switch {
		case now.Before(from):
			return wrong("set the clock, or "+renew, "%s is not valid before %s", c.File,
				date(from))
		case now.After(to):
			return wrong(renew, "%s has expired, on %s: callers refuse it", c.File, date(to))
		}
		if shown, err := c.Shown(ctx); err == nil && shown != nil &&
			!bytes.Equal(shown.Raw, certificate.Raw) {
			return warning("start the service again",
				"the service does not present %s but another certificate, which expires on %s",
				c.File, date(shown.NotAfter))
		}
		if to.Sub(now) < min(soon, to.Sub(from)/4) {
			return warning(renew, "%s expires on %s", c.File, date(to))
		}
		return ok("valid until %s", date(to))
	}}
}

func date(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 MST") }
