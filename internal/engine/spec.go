package engine

import (
	"net/netip"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Spec says how a container is made.
type Spec struct {
	// Name is unique among the engine's containers.
	Name string
	// Image is the id of the image whose files are the root, which must be there.
	Image string
	// Runtime is the name of the OCI runtime. One that the engine does not know is an error.
	Runtime string
	// Hostname is what the container calls itself.
	Hostname string
	// Labels are what List finds the container by; they cannot change.
	Labels map[string]string
	// Process is the first process, as far as Args (with the program's path), Env, Cwd, User (UID
	// and GID), Rlimits, OOMScoreAdj and NoNewPrivileges say. ApparmorProfile is empty for the
	// engine's own profile, or Unconfined. Capabilities are not: see below.
	Process specs.Process
	// Stdin gives it a stdin, for Attach. It ends when the attached caller has gone.
	Stdin bool
	// StopSignal is the signal by which others may stop the container; 0 for the engine's own.
	StopSignal syscall.Signal
	// Capabilities change the engine's default set.
	Capabilities Capabilities
	// Seccomp is the profile of all processes in JSON, in the form that Docker and Podman take;
	// empty for the engine's own, or Unconfined.
	Seccomp string
	// Resources bound all processes together: CPU.Quota per CPU.Period (both or none), Memory.Limit
	// and Memory.Swap (of both together), Pids.Limit. 0 is without bound; others are left out.
	Resources specs.LinuxResources
	// Shm is the size of /dev/shm in bytes; 0 for the engine's own.
	Shm int64
	// ReadonlyRoot makes everything read-only that is no mount.
	ReadonlyRoot bool
	// Mounts are made in their order, but Tmpfs first. The type is Bind, Tmpfs or VolumeType.
	//
	// Bind mounts a file or directory of the host, which must be there, by its name. Its options
	// are "ro", or none; it is always private. Tmpfs takes the options of mount(8). VolumeType
	// mounts the one of Volumes whose name is the Source.
	Mounts []specs.Mount
	// Volumes are those of Mounts. Of one that exists already, the options and labels stay.
	Volumes []Volume
	// Net is the network that it is on; nil for none, but a loopback that the engine makes.
	Net *Attachment
	// RuntimeLoopback leaves the loopback of a container without a Net to the runtime.
	RuntimeLoopback bool
	// Sysctl are those of its network namespace.
	Sysctl map[string]string
	// CgroupParent is the control group below which it is put; empty for the engine's own.
	CgroupParent string
}

// Unconfined stands for no profile at all.
const Unconfined = "unconfined"

// Types of Spec.Mounts and Container.Mounts.
const (
	Bind       = "bind"
	Tmpfs      = "tmpfs"
	VolumeType = "volume"
)

// Capabilities are changes of the default set that Docker, Podman and containerd have in common:
// first Drop is taken away, then Add is given. Names are without CAP_; ALL stands for all. If both
// have ALL, all but Drop are given.
type Capabilities struct{ Drop, Add []string }

// Attachment is how a container is put on a network.
type Attachment struct {
	// Network is the network's name, and Addr the container's address there.
	Network string
	Addr    netip.Addr
	// Resolver is the address to which the engine passes names that it is asked for itself.
	Resolver string
}

// BindMount returns a mount of the host's source at target.
func BindMount(source, target string, readOnly bool) specs.Mount {
	m := specs.Mount{Type: Bind, Source: source, Destination: target}
	if readOnly {
		m.Options = []string{readOnlyOption}
	}
	return m
}

// IsReadOnly reports whether nothing can be written through a mount.
func IsReadOnly(m specs.Mount) bool {
	for _, option := range m.Options {
		if option == readOnlyOption {
			return true
		}
	}
	return false
}

const readOnlyOption = "ro"

// Volume is a tmpfs that outlives containers: it has its content from when the first container that
// mounts it starts until the last one ends.
type Volume struct {
	Name   string
	Labels map[string]string
	// Options are those of mount(8), with its size; only for Spec.Volumes.
	Options []string
	// Dir is where its files are on the engine's host while containers run; only of FindVolume.
	Dir string
}
