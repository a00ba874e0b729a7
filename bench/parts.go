package main

import (
	"fmt"
	"slices"
	"strings"
)

// part is a section of the report that can be measured by itself.
type part struct {
	name string
	show func(findings) section
}

// parts has all parts, in the order of the report.
var parts = []part{
	{"warm", warmSection}, {"session", sessionSection}, {"rest", restSection}, {"cold", coldSection}, {"create", createSection}, {"together", togetherSection}, {"streams", streamSection},
	{"memory", memorySection}, {"grants", grantsSection},
	{"work", workSection}, {"network", networkSection}, {"dns", dnsSection}, {"guard", guardSection},
	{"processes", processesSection}, {"e2b", e2bSection},
}

// insideParts are measured in one container of a service without a network, one after the other.
var insideParts = []string{"warm", "session", "cold", "together", "streams", "memory", "grants"}

// rootParts make networks, rules, control groups or disks, or read about other users' processes;
// internetParts need the test internet.
var (
	rootParts     = []string{"work", "rest", "network", "dns", "guard", "e2b"}
	internetParts = []string{"network", "dns", "guard"}
)

func partNames() []string {
	names := make([]string, len(parts))
	for i, p := range parts {
		names[i] = p.name
	}
	return names
}

// chooseParts reads --sections.
func chooseParts(list string) ([]string, error) {
	chosen := strings.Split(list, ",")
	for _, name := range chosen {
		if !slices.Contains(partNames(), name) {
			return nil, fmt.Errorf("--sections: there is no section %q, only %s", name, strings.Join(partNames(), ", "))
		}
	}
	return chosen, nil
}

// has reports whether any of the parts is to be measured.
func (cfg settings) has(names ...string) bool {
	return len(cfg.parts) == 0 || slices.ContainsFunc(names, func(name string) bool { return slices.Contains(cfg.parts, name) })
}
