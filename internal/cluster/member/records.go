package member

import (
	"maps"
	"slices"
	"strings"

	"github.com/daycare-run/sandbox/internal/cluster"
	"github.com/daycare-run/sandbox/internal/registry"
	"github.com/daycare-run/sandbox/internal/workload/process"
)

// Sandboxes returns the records of registered sandboxes that all hosts share.
func (m *Membership) Sandboxes() registry.Records { return sandboxRecords{m.cluster} }

type sandboxRecords struct{ *cluster.Cluster }

// Write implements registry.Records.
func (s sandboxRecords) Write(user, id string, text []byte, revision int64) (int64, error) {
	return s.Cluster.Write(s.Leased(), user,
		cluster.Change{Kind: "sandboxes", Name: id, Value: text, If: &revision})
}

// Processes returns the records of durable processes that all hosts share.
func (m *Membership) Processes() process.Shared { return processRecords{m.cluster} }

type processRecords struct{ *cluster.Cluster }

// Write implements process.Shared.
func (p processRecords) Write(user string, values map[string][]byte) error {
	var changes []cluster.Change
	for _, name := range slices.Sorted(maps.Keys(values)) {
		changes = append(changes, cluster.Change{Kind: "processes", Name: user + "/" + name,
			Value: values[name]})
	}
	_, err := p.Cluster.Write(p.Leased(), user, changes...)
	return err
}

// Read implements process.Shared.
func (p processRecords) Read(user, name string) ([]byte, error) {
	return p.Cluster.Read(p.Leased(), "processes", user+"/"+name)
}

// List implements process.Shared.
func (p processRecords) List(user string) (map[string][]byte, error) {
	all, err := p.Cluster.List(p.Leased(), "processes", user+"/")
	own := map[string][]byte{}
	for name, value := range all {
		own[strings.TrimPrefix(name, user+"/")] = value
	}
	return own, err
}
