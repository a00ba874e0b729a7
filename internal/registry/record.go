package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/pathmap"
)

// recordVersion is the version of a record's form on disk.
const recordVersion = 2

// record is a Sandbox on disk.
type record struct {
	Version    int    `json:"version"`
	ID         string `json:"id"`
	UserID     string `json:"userId"`
	WorkingDir string `json:"workingDir"`
	// From version 2.
	WriteDirs []string      `json:"writeDirs,omitempty"`
	ReadDirs  []string      `json:"readDirs,omitempty"`
	Network   bool          `json:"network,omitempty"`
	Events    bool          `json:"events,omitempty"`
	AppID     string        `json:"appId,omitempty"`
	Mounts    []mountRecord `json:"mounts,omitempty"`
	SkillsDir string        `json:"skillsDir,omitempty"`
	// A service that does not know these grants none.
	Processes []string `json:"processes,omitempty"`
	Secrets   []string `json:"secrets,omitempty"`
	// A service that does not know these three runs each call in a container for its grants.
	Persistent      bool     `json:"persistent,omitempty"`
	AllowedDomains  []string `json:"allowedDomains,omitempty"`
	PackageManagers []string `json:"packageManagers,omitempty"`

	Token  string `json:"token,omitempty"`
	Paused bool   `json:"paused,omitempty"`

	CreatedAt time.Time `json:"createdAt"`
	UpdatedAt time.Time `json:"updatedAt"`
}

type mountRecord struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"readOnly"`
}

func parseRecord(id string, text []byte) (Sandbox, error) {
	var on record
	if err := json.Unmarshal(text, &on); err != nil {
		return Sandbox{}, err
	}
	if on.Version < 1 || on.Version > recordVersion {
		return Sandbox{}, fmt.Errorf("version %d is not known", on.Version)
	}
	if on.ID != id {
		return Sandbox{}, fmt.Errorf("it is about %q", on.ID)
	}
	return on.sandbox()
}

// sandbox parses a record like untrusted input: whoever can write the file can write anything.
func (on record) sandbox() (Sandbox, error) {
	s := Sandbox{
		Network: on.Network, Events: on.Events, AppID: on.AppID, SkillsDir: on.SkillsDir,
		Processes: on.Processes, Secrets: on.Secrets, Persistent: on.Persistent,
		Domains: on.AllowedDomains, Presets: on.PackageManagers, Token: on.Token, Paused: on.Paused, CreatedAt: on.CreatedAt, UpdatedAt: on.UpdatedAt,
	}
	var faults [8]error
	for _, name := range on.Processes {
		faults[6] = errors.Join(faults[6], policy.CheckProcessName(name))
	}
	for _, name := range on.Secrets {
		faults[7] = errors.Join(faults[7], policy.CheckSecretName(name))
	}
	s.ID, faults[0] = ids.ParseSandbox(on.ID)
	s.User, faults[1] = ids.ParseUser(on.UserID)
	s.WorkingDir, faults[2] = pathmap.ParseContainer(on.WorkingDir)
	_, faults[3] = policy.ParseAppID(on.AppID)
	s.WriteDirs, faults[4] = ParsePaths(on.WriteDirs)
	s.ReadDirs, faults[5] = ParsePaths(on.ReadDirs)
	all := faults[:]
	for _, m := range on.Mounts {
		source, err := pathmap.ParseHost(m.Source)
		target, err2 := pathmap.ParseContainer(m.Target)
		all = append(all, err, err2)
		s.Mounts = append(s.Mounts, Mount{Source: source, Target: target, ReadOnly: m.ReadOnly})
	}
	if on.SkillsDir != "" {
		_, err := pathmap.ParseHost(on.SkillsDir)
		all = append(all, err)
	}
	return s, errors.Join(all...)
}

// ParsePaths parses container paths.
func ParsePaths(names []string) ([]pathmap.ContainerPath, error) {
	var paths []pathmap.ContainerPath
	for _, name := range names {
		path, err := pathmap.ParseContainer(name)
		if err != nil {
			return nil, err
		}
		paths = append(paths, path)
	}
	return paths, nil
}

func newRecord(s Sandbox) record {
	on := record{
		Version: recordVersion, ID: s.ID.String(), UserID: s.User.String(),
		WorkingDir: s.WorkingDir.String(), Network: s.Network, Events: s.Events, AppID: s.AppID,
		SkillsDir: s.SkillsDir, Processes: s.Processes, Secrets: s.Secrets, Persistent: s.Persistent,
		AllowedDomains: s.Domains, PackageManagers: s.Presets, Token: s.Token, Paused: s.Paused,
		CreatedAt: s.CreatedAt, UpdatedAt: s.UpdatedAt,
	}
	for _, dir := range s.WriteDirs {
		on.WriteDirs = append(on.WriteDirs, dir.String())
	}
	for _, dir := range s.ReadDirs {
		on.ReadDirs = append(on.ReadDirs, dir.String())
	}
	for _, m := range s.Mounts {
		on.Mounts = append(on.Mounts,
			mountRecord{Source: m.Source.String(), Target: m.Target.String(), ReadOnly: m.ReadOnly})
	}
	return on
}
