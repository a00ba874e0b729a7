package config

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/daycare-run/sandbox/internal/strictjson"
)

const (
	// maxSocketPath is the room in the kernel's sockaddr_un, less the NUL at its end.
	maxSocketPath = 107
	maxPath       = 4096

	minMemory = 64 * mi
	minTmpfs  = 64 * ki // for tmpfs, a size of 0 means no bound

	// minPIDs leaves room for commands beside the agent's threads.
	minPIDs = 128
	maxPIDs = 1 << 22 // the kernel's PID_MAX_LIMIT

	// minOpenFiles leaves room for the agent, which has the same limit.
	minOpenFiles, maxOpenFiles = 1024, 1 << 20 // the kernel's fs.nr_open, unless it was raised

	minCPUs, maxCPUs = 0.01, 8192.0

	maxMillis = Millis(24 * time.Hour / time.Millisecond)
	maxBytes  = int64(gi)

	// maxID is one less than the largest id of a process in Docker (2^31-1): the agent's id is 2^31
	// above the command's.
	maxID = 1<<31 - 2
)

// zerolog's levels, by name only.
var levels = []string{"trace", "debug", "info", "warn", "error", "fatal", "panic", "disabled"}

// Validate returns nil if every value is possible, else one error that names each impossible value
// with its key. It does not check what the host and Docker have (a directory, an image, a runtime).
func (c Config) Validate() error {
	if wrong := c.check(); len(wrong.Faults) > 0 {
		return fmt.Errorf("cannot use these settings: %w", wrong)
	}
	return nil
}

func (c Config) check() faults {
	var f faults
	c.Docker.check(&f)
	c.Egress.check(&f)
	c.checkPaths(&f)
	c.Access.check(&f)
	c.TCP.check(&f, c.E2B.Listen != "")
	c.E2B.check(&f, c.TCP)
	c.Cluster.check(&f)
	if c.HomeOwner.UID == 0 {
		f.Add("homeOwner", "%q is root, but commands run as the home's owner", c.HomeOwner)
	}
	if id := max(c.HomeOwner.UID, c.HomeOwner.GID, c.HomeOwner.Last); id > maxID {
		f.Add("homeOwner", "%q: %d is more than %d, the largest id that commands may run as",
			c.HomeOwner, id, maxID)
	}
	if last := c.HomeOwner.Last; last != 0 && last < c.HomeOwner.UID {
		f.Add("homeOwner", "%q has to go upwards", c.HomeOwner)
	}
	c.Limits.check(&f)
	c.Quotas.check(&f)
	c.Idle.check(&f)
	f.between("shutdownGraceMs", int64(c.ShutdownGrace), 0, 600_000)
	c.Pool.check(&f)
	c.Exec.check(&f)
	c.Read.check(&f)
	c.Processes.check(&f)
	f.oneOf("log.level", c.Log.Level, levels...)
	f.oneOf("log.format", c.Log.Format, "json", "text")
	return f
}

// checkPaths checks the paths. The service's own files must not be in usersDir, because containers
// write there.
func (c Config) checkPaths(f *faults) {
	users := f.path("usersDir", c.UsersDir)
	if c.UsersDir == "/" {
		f.Add("usersDir", "%q is the whole host", c.UsersDir)
		users = false
	}
	host := c.Cluster
	if !host.On() {
		host = Cluster{}
	}
	for _, own := range []struct {
		key, path string
		isNeeded  bool
		isGood    func(key, path string) bool
	}{
		{"dataDir", c.DataDir, true, f.path}, {"listen", c.Listen, true, f.socket},
		{"docker.socketPath", c.Docker.SocketPath, true, f.socket},
		{"agentPath", c.AgentPath, false, f.path},
		{"eventsSocket", c.EventsSocket, false, f.socket},
		{"egress.caFile", c.Egress.CAFile, false, f.path},
		{"tcp.tokensFile", c.TCP.TokensFile, false, f.path},
		{"tcp.certFile", c.TCP.CertFile, false, f.path},
		{"tcp.keyFile", c.TCP.KeyFile, false, f.path},
		{"tcp.clientCaFile", c.TCP.ClientCAFile, false, f.path},
		{"cluster.caFile", host.CAFile, host.On(), f.path},
		{"cluster.certFile", host.CertFile, host.On(), f.path},
		{"cluster.keyFile", host.KeyFile, host.On(), f.path},
		{"cluster.sealingKeyFile", host.SealingKeyFile, host.On(), f.path},
	} {
		if own.path == "" && !own.isNeeded || !own.isGood(own.key, own.path) {
			continue
		}
		if users && (own.path == c.UsersDir || strings.HasPrefix(own.path, c.UsersDir+"/")) {
			f.Add(own.key, "%s is in usersDir, where users write", strictjson.Quote(own.path))
		}
	}
	if c.Cluster.Watchdog != "" {
		f.path("cluster.watchdog", c.Cluster.Watchdog)
	}
	for i, root := range c.AllowedMountRoots {
		f.path(fmt.Sprintf("allowedMountRoots[%d]", i), root)
	}
	if c.Listen != "" && c.Listen == c.Docker.SocketPath {
		f.Add("listen", "%s is Docker's socket", strictjson.Quote(c.Listen))
	}
}

func (l Limits) check(f *faults) {
	// Written so that NaN is refused.
	if !(l.CPUs >= minCPUs && l.CPUs <= maxCPUs) {
		f.Add("limits.cpus", "%v is not from %v to %v", l.CPUs, minCPUs, maxCPUs)
	}
	f.atLeast("limits.memory", l.Memory, minMemory)
	f.between("limits.pids", l.PIDs, minPIDs, maxPIDs)
	f.between("limits.openFiles", l.OpenFiles, minOpenFiles, maxOpenFiles)
	f.atLeast("limits.shm", l.Shm, minTmpfs)
	f.atLeast("limits.tmp", l.Tmp, minTmpfs)
	f.atLeast("limits.run", l.Run, minTmpfs)
	f.atLeast("limits.varTmp", l.VarTmp, minTmpfs)
}

func (e Exec) check(f *faults) {
	f.between("exec.defaultTimeoutMs", int64(e.DefaultTimeout), 1, int64(maxMillis))
	f.between("exec.maxTimeoutMs", int64(e.MaxTimeout), 1, int64(maxMillis))
	if e.MaxTimeout < e.DefaultTimeout {
		f.Add("exec.maxTimeoutMs", "%d is less than exec.defaultTimeoutMs, %d", e.MaxTimeout,
			e.DefaultTimeout)
	}
	f.between("exec.maxAttachedTimeoutMs", int64(e.MaxAttachedTimeout), 1, int64(maxMillis))
	f.between("exec.maxOutputBytes", e.MaxOutputBytes, 1, maxBytes)
	f.between("exec.maxRequestBytes", e.MaxRequestBytes, 1024, maxBytes)
	f.between("exec.killGraceMs", int64(e.KillGrace), 0, int64(maxMillis))
	f.between("exec.ahead", e.Ahead, 0, 1)
}

func (r Read) check(f *faults) {
	f.between("read.maxImage.bytes", int64(r.MaxImage.Bytes), 1, int64(32*mi))
	f.between("read.maxImage.pixels", r.MaxImage.Pixels, 1, 65535)
}

func (p Pool) check(f *faults) {
	f.between("pool.size", p.Size, 0, 1000)
	f.between("pool.max", p.Max, 1, 1000)
	f.atLeast("pool.minFreeMemory", p.MinFreeMemory, minTmpfs)
}

func (p Processes) check(f *faults) {
	f.atLeast("processes.maxLog", p.MaxLog, minTmpfs)
	f.between("processes.stopGraceMs", int64(p.StopGrace), 1, 600_000)
	if r := p.ExposePorts; r != (PortRange{}) && (r.First < 1024 || r.Last < r.First) {
		f.Add("processes.exposePorts", "%q has to go upwards, from 1024 on", r)
	}
}

// path adds the fault of a path of the host, and reports whether there is none.
func (f *faults) path(key, name string) bool {
	says := ""
	switch {
	case name == "":
		says = "is empty"
	case len(name) > maxPath:
		says = fmt.Sprintf("has %d bytes, more than %d", len(name), maxPath)
	case !utf8.ValidString(name):
		says = "is not UTF-8"
	case strings.ContainsFunc(name, unicode.IsControl):
		says = "holds a control character"
	case name[0] != '/':
		says = "is not absolute"
	case path.Clean(name) != name:
		says = fmt.Sprintf("is not clean: write %s", strictjson.Quote(path.Clean(name)))
	default:
		return true
	}
	f.Add(key, "%s %s", strictjson.Quote(name), says)
	return false
}

func (f *faults) socket(key, name string) bool {
	if !f.path(key, name) {
		return false
	}
	if len(name) > maxSocketPath {
		f.Add(key, "%s has %d bytes, but a socket's path at most %d", strictjson.Quote(name),
			len(name), maxSocketPath)
		return false
	}
	return true
}

func (f *faults) between(key string, n, low, high int64) {
	if n < low || n > high {
		f.Add(key, "%d is not from %d to %d", n, low, high)
	}
}

func (f *faults) atLeast(key string, s, low Size) {
	if s < low {
		f.Add(key, "%q is less than %s", s, low)
	}
}

func (f *faults) oneOf(key, value string, allowed ...string) {
	if !slices.Contains(allowed, value) {
		f.Add(key, "%s is none of %s%s", strictjson.Quote(value), strings.Join(allowed, ", "),
			strictjson.Nearest(value, allowed))
	}
}
