// Package dockerexec has the containers of one service: it turns a Spec into a container, takes
// over what an earlier service has left, and removes what is stale. Some containers are there for
// calls, whose commands run through a session with the agent inside; package warm decides when
// those are made and when they go. The others are detached: they run durable processes and
// persistent sandboxes, with or without the service.
//
// spec.go says what a container is, and hostconfig.go alone translates that for Docker.
// container.go is a container, and package life its state. registry.go has all of them. make.go
// makes them, bind.go gives a pooled one to a user, adopt.go takes over what was found, and
// remove.go removes them. reconcile.go compares with what Docker has. forcalls.go is for who lets
// calls in, process.go and persistent.go are for detached ones. What the service wants is asked of
// a Gate (gate.go), and what others may want to know is told as Changes (changes.go). The other
// files are named after what they hold.
package dockerexec

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/daycare-run/sandbox/dockerexec/session"
)

// Spec is everything that a command may see or reach, made concrete for Docker. It is a value: two
// calls share a container exactly when their Specs have the same fingerprint.
type Spec struct {
	Platform Platform `json:"platform"`
	// User is the tenant.
	User string `json:"user"`
	// UID and GID are what commands run as: the owner of the tenant's home.
	UID uint32 `json:"uid"`
	GID uint32 `json:"gid"`
	// Passwd and Group are files on Docker's host for /etc/passwd and /etc/group, whose names
	// change with their content; empty if the image's own will do.
	Passwd string `json:"passwd"`
	Group  string `json:"group"`
	// SpoolDir is a directory on the host beside the tenant's home, for the file that large outputs
	// pass through. Commands must not be able to reach it.
	SpoolDir string `json:"spoolDir"`
	// Mounts are host directories and files, and Masks hide something in them. Their order does not
	// matter.
	Mounts []Mount `json:"mounts"`
	Masks  []Mask  `json:"masks"`
	// Pins are directories that commands must not rename, because a mask or a mount is below them.
	Pins []Pin `json:"pins"`
	// Links are the further names of hidden files, which are hidden, too. Another name makes
	// another Spec, because a container has masks only for the names that it was made with.
	Links []Link `json:"links"`
	// Symlinks lead to what a call gives up. They are only watched: when one leads elsewhere, the
	// container is ended.
	Symlinks []Symlink `json:"symlinks,omitempty"`
	// Events selects Platform.EventsRuntime instead of Runtime.
	Events bool `json:"events"`
	// Egress is what may be reached.
	Egress Egress `json:"egress"`
	// Bundle is a file of certificates for this container, in place of Platform.Bundle; BundleAt as
	// there. Empty if the platform's will do.
	Bundle   string `json:"bundle,omitempty"`
	BundleAt string `json:"bundleAt,omitempty"`
	// Reaches are the processes whose ports are offered in the container while a call runs, sorted.
	Reaches []Reach `json:"reaches,omitempty"`
	// Process makes the container a durable process's.
	Process Process `json:"process"`
	// Persistent makes the container a persistent one, of the sandbox with that id.
	Persistent string `json:"lasting,omitempty"`
	// Root lets commands of a persistent container run as root, with rootCapabilities. It is for
	// gVisor only.
	Root bool `json:"root,omitempty"`
}

// Reach names processes of the tenant.
type Reach struct {
	// Name is the process's; empty for any.
	Name string `json:"name,omitempty"`
	// Sandbox leaves only processes that were started by the sandbox of that id; empty for all.
	Sandbox string `json:"sandbox,omitempty"`
}

// Platform is the part of a Spec that the settings and the host decide. It is the same for every
// call. A container of another platform is stale.
type Platform struct {
	// Instance distinguishes the containers of several services on one Docker.
	Instance string `json:"instance"`
	// DataDir is the service's data directory, which no other service uses at the same time.
	DataDir string `json:"dataDir"`
	// ImageID is the image's content id, so that a rebuilt image is another platform.
	ImageID string `json:"imageId"`
	// Agent is the agent's file on Docker's host; its name changes with its content.
	Agent string `json:"agent"`
	// Runtime is the OCI runtime's name as Docker knows it, and EventsRuntime that of the
	// containers that may open the caller's control socket.
	Runtime       string `json:"runtime"`
	EventsRuntime string `json:"eventsRuntime"`
	// Offline is the runtime of containers without a network, if it gives them a loopback of their
	// own when Docker gives them no network at all, not even the one that it calls none. That saves
	// Docker's part of a start. Empty means Runtime on that network.
	Offline string `json:"offline,omitempty"`
	// Linked is the runtime of containers that reach names, if it connects them to their gateway
	// itself. That saves Docker's part of a start, which is larger there. Empty means Runtime on
	// Docker's network.
	Linked string `json:"linked,omitempty"`
	// GVisor says that Runtime and EventsRuntime are gVisor, whose kernel is the container's own.
	GVisor bool `json:"gvisor,omitempty"`
	// MaskDir is the directory on Docker's host with the sources of masks (Install).
	MaskDir string `json:"maskDir"`
	// Bundle is a file of certificates on Docker's host, whose name changes with its content and
	// that programs find at BundleAt; empty if the image's own will do.
	Bundle   string `json:"bundle"`
	BundleAt string `json:"bundleAt"`
	// Network is the prefix of the names of our networks and of their interfaces.
	Network string `json:"network"`
	// ReadOnlyRoot makes everything but mounts and tmpfs read-only.
	ReadOnlyRoot bool `json:"readOnlyRoot"`
	// Unconfined turns seccomp and AppArmor off.
	Unconfined bool `json:"unconfined"`
	// UserNamespaces lets commands make user namespaces, and mounts and other namespaces in them.
	UserNamespaces bool `json:"userNamespaces"`
	// CapDrop and CapAdd are in Docker's form: CapDrop is taken from its default set, then CapAdd
	// is added.
	CapDrop []string `json:"capDrop"`
	CapAdd  []string `json:"capAdd"`
	Limits  Limits   `json:"limits"`
}

// Limits bound a container. Sizes are in bytes.
type Limits struct {
	NanoCPUs int64 `json:"nanoCpus"`
	Memory   int64 `json:"memory"`
	// Pids bounds processes and threads; under gVisor, those of commands and those of the agent
	// each.
	Pids int64 `json:"pids"`
	// OpenFiles bounds the descriptors of one process.
	OpenFiles int64 `json:"openFiles"`
	Shm       int64 `json:"shm"`
	Tmp       int64 `json:"tmp"`
	Run       int64 `json:"run"`
	VarTmp    int64 `json:"varTmp"`
}

// Mount binds a host directory or file into the container.
type Mount struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"readOnly"`
	// ID is what Source was when the Spec was made: another file of that name makes another Spec.
	ID FileID `json:"id"`
	// Verify is set if a tenant may influence what Source's components are. Docker takes a name, so
	// before the first command runs it is verified that Docker mounted the file with that ID.
	Verify bool `json:"verify"`
}

// Pin is a directory that is mounted at the place where it is anyway.
type Pin struct {
	Place  string `json:"place"` // on the host
	Target string `json:"target"`
}

// Home identifies the tenant's home directory; it is zero for a Spec without one.
func (s Spec) Home() FileID {
	for _, m := range s.Mounts {
		if m.Target == homeTarget {
			return m.ID
		}
	}
	return FileID{}
}

// Certificates returns the file of certificates that the container gets in place of the image's own,
// and where programs find it; empty for none.
func (s Spec) Certificates() (source, target string) {
	if s.Bundle != "" {
		return s.Bundle, s.BundleAt
	}
	return s.Platform.Bundle, s.Platform.BundleAt
}

// homeTarget is where the tenant's home is in a container.
const homeTarget = "/home"

// FileID identifies a file on its host.
type FileID struct {
	Dev uint64 `json:"dev"`
	Ino uint64 `json:"ino"`
	// Since is a time in nanoseconds that tells the file from earlier and later ones: a file system
	// reuses the number of a file that is gone. 0 means that it is unknown.
	Since int64 `json:"since"`
}

// Same reports whether two files that exist at the same time are the same file.
func (id FileID) Same(other FileID) bool { return id.Dev == other.Dev && id.Ino == other.Ino }

// Link is a further name of a hidden file.
type Link struct {
	Target string `json:"target"`
	ID     FileID `json:"id"`
}

// Symlink is a symbolic link, and its text.
type Symlink struct {
	Target string `json:"target"`
	Text   string `json:"text"`
}

// StandsIn reports whether the Spec keeps something on the host at a path that does not exist
// otherwise.
func (s Spec) StandsIn() bool {
	return slices.ContainsFunc(s.Masks, func(m Mask) bool { return m.Vacant && !m.Absent })
}

// Mask hides what is at Target, now and later.
type Mask struct {
	Target string `json:"target"`
	// File says that what is there, or will be, is not a directory.
	File bool `json:"file"`
	// Listable makes it an empty file that may be read, instead of one that nobody may open. A
	// directory is empty, and may always be listed: of one, it says that it is the tenant's own, and
	// hides nothing while it is empty, as that of all apps does.
	Listable bool `json:"listable"`
	// Vacant is for a path that does not exist and that the call gives up, although its container
	// may write around it. The user's other programs meet what stands in for it, so the container
	// is not kept for long.
	Vacant bool `json:"vacant"`
	// Absent is for a path that does not exist and that nothing stands in for: nothing is mounted.
	// When somebody makes it, the container is ended.
	Absent bool `json:"absent"`
	// Holds are the mount points in it, relative to Target: what an app sees of the directory of
	// all apps.
	Holds []string `json:"holds"`
	// Place is a path on the host where something must exist for the mask to be mounted; empty for
	// a path of the image, and for one that is absent.
	Place string `json:"place"`
	// ID is what the mask hides: a mask does not outlive the file it was put on, so another file
	// makes another Spec. Zero means nothing.
	ID FileID `json:"id"`
}

// Fingerprint identifies a Spec: the hex SHA-256 of its canonical form.
type Fingerprint string

// Short returns enough of it to tell a user's containers apart in a name.
func (f Fingerprint) Short() string { return string(f[:12]) }

// equal reports whether both platforms have the same fingerprint.
func (p Platform) equal(other Platform) bool {
	return Spec{Platform: p}.Fingerprint() == Spec{Platform: other}.Fingerprint()
}

// ordered returns the Spec with its unordered lists sorted.
func (s Spec) ordered() Spec {
	s.Mounts = sorted(s.Mounts, func(a, b Mount) int { return strings.Compare(a.Target, b.Target) })
	s.Masks = sorted(s.Masks, func(a, b Mask) int { return strings.Compare(a.Target, b.Target) })
	s.Pins = sorted(s.Pins, func(a, b Pin) int { return strings.Compare(a.Target, b.Target) })
	s.Links = sorted(s.Links, func(a, b Link) int { return strings.Compare(a.Target, b.Target) })
	s.Symlinks = sorted(s.Symlinks, func(a, b Symlink) int {
		return strings.Compare(a.Target, b.Target)
	})
	s.Egress.Domains = sorted(s.Egress.Domains, strings.Compare)
	s.Egress.Denied = sorted(s.Egress.Denied, strings.Compare)
	s.Egress.Addresses = sorted(s.Egress.Addresses, strings.Compare)
	s.Egress.DeniedAddresses = sorted(s.Egress.DeniedAddresses, strings.Compare)
	s.Egress.Secrets = sorted(s.Egress.Secrets, strings.Compare)
	s.Platform.CapDrop = sorted(s.Platform.CapDrop, strings.Compare)
	s.Platform.CapAdd = sorted(s.Platform.CapAdd, strings.Compare)
	return s
}

// sorted returns the list in order. It leaves its argument as it is, and copies it only if it must.
func sorted[T any](list []T, compare func(a, b T) int) []T {
	if slices.IsSortedFunc(list, compare) {
		return list
	}
	return slices.SortedFunc(slices.Values(list), compare)
}

// The labels by which a container describes itself.
const (
	labelInstance    = "run.daycare.sandbox.instance"
	labelData        = "run.daycare.sandbox.data" // the service's dataDir
	labelUser        = "run.daycare.sandbox.user"
	labelFingerprint = "run.daycare.sandbox.fingerprint"
	labelSpec        = "run.daycare.sandbox.spec"
	labelGateway     = "run.daycare.sandbox.gateway" // only on gateways: what they were made with
	labelProcess     = "run.daycare.sandbox.process" // only on those of durable processes
	labelPersistent  = "run.daycare.sandbox.lasting" // only on persistent ones
	labelAddress     = "run.daycare.sandbox.address" // only where the runtime has connected it
)

// text returns the Spec as JSON, by which a container describes itself.
func (s Spec) text() string {
	text, err := json.Marshal(s.ordered())
	if err != nil {
		panic(fmt.Sprintf("a Spec holds nothing that JSON lacks: %v", err))
	}
	return string(text)
}

func (s Spec) labels() map[string]string {
	labels := s.Platform.owner().labels()
	labels[labelUser] = s.User
	labels[labelFingerprint] = string(s.Fingerprint())
	labels[labelSpec] = s.text()
	if s.Process.ID != "" {
		labels[labelProcess] = s.Process.ID
	}
	if s.Persistent != "" {
		labels[labelPersistent] = s.Persistent
	}
	return labels
}

// specFromLabels reads a Spec back and refuses one that does not match its own fingerprint.
func specFromLabels(labels map[string]string) (Spec, error) {
	var s Spec
	if err := json.Unmarshal([]byte(labels[labelSpec]), &s); err != nil {
		return Spec{}, fmt.Errorf("label %s is not a spec: %w", labelSpec, err)
	}
	if got := s.Fingerprint(); string(got) != labels[labelFingerprint] {
		return Spec{}, fmt.Errorf("label %s is %q, but the spec has %q", labelFingerprint,
			labels[labelFingerprint], got)
	}
	return s, nil
}

// onFullDisk is a path, wherever it is, on a disk of Docker's host that cannot be written to.
var onFullDisk = regexp.MustCompile(
	`(^|[\s"'(])/[^:]*(: (?:no space left on device|disk quota exceeded|input/output error))`)

// absolutePath is a path in what an OCI runtime says.
var absolutePath = regexp.MustCompile(`(?:^|[^\w./-])/[^\s"':,;)\]]*`)

// withoutHostPaths returns a message without paths on the host: a mount's path becomes its place
// inside, the others that this Spec has become words. So do those that Docker names when its disk is
// full, and those that an OCI runtime names: the tenant may have led it to any path, by a link.
func (s Spec) withoutHostPaths(message string) string {
	hidden := []string{s.Platform.Agent, session.AgentPath, s.Platform.MaskDir, "(a mask)",
		s.Platform.Bundle, s.Platform.BundleAt, s.Bundle, s.BundleAt, s.Passwd, "/etc/passwd",
		s.Group, "/etc/group"}
	for _, m := range s.Mounts {
		hidden = append(hidden, m.Source, m.Target)
	}
	for _, pin := range s.Pins {
		hidden = append(hidden, pin.Place, pin.Target)
	}
	for _, mask := range s.Masks {
		hidden = append(hidden, mask.Place, mask.Target)
	}
	if s.Process.Dir != "" {
		hidden = append(hidden, s.Process.Dir, "(the process's folder)")
	}
	if s.SpoolDir != "" {
		hidden = append(hidden, s.SpoolDir, "(the user's folder)")
	}
	hidden = append(hidden, s.Platform.DataDir, "(the service's folder)")
	for i := 0; i < len(hidden); i += 2 {
		if hidden[i] != "" {
			message = strings.ReplaceAll(message, hidden[i], hidden[i+1])
		}
	}
	const runtime = "OCI runtime"
	if begin, said, found := strings.Cut(message, runtime); found {
		message = begin + runtime + absolutePath.ReplaceAllStringFunc(said, func(at string) string {
			start := strings.IndexByte(at, '/')
			if path := at[start:]; path == "/" || slices.Contains(hidden, path) {
				return at
			}
			return at[:start] + "(a path of the host)"
		})
	}
	return onFullDisk.ReplaceAllString(message, "${1}(a path of the host)$2")
}

// Runtime returns the OCI runtime of the Spec's container.
func (s Spec) Runtime() string {
	if s.Events {
		return s.Platform.EventsRuntime
	}
	return s.Platform.Runtime
}

// isOffline reports whether the Spec's container gets no network from Docker at all.
func (s Spec) isOffline() bool {
	return s.Platform.Offline != "" && !s.Events && s.Egress.Profile == ""
}

// isLinked reports whether the Spec's container is connected by its runtime, where its network has
// a gateway.
func (s Spec) isLinked() bool {
	return s.Platform.Linked != "" && !s.Events && s.Egress.Profile != "" && !s.Egress.IsOpen()
}

// ContainerName returns the name of the Spec's container.
func (s Spec) ContainerName() string {
	if s.Process.ID != "" {
		return "daycare-process-" + s.Process.ID
	}
	if s.Persistent != "" && !s.IsPooled() {
		return "daycare-lasting-" + s.Persistent
	}
	return "daycare-sandbox-" + strings.ReplaceAll(s.User, "/", "-") + "-" + s.Fingerprint().Short()
}
