package main

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// part is a section of the report that can be measured by itself.
type part struct {
	name string
	show func(findings) section
	// root says that it makes networks, control groups or disks, or reads about other users'
	// processes, and internet that it needs the test internet.
	root, internet bool
	// named says that it is measured only where --sections names it.
	named bool
	// programs are those of the host that it starts.
	programs []string
}

// parts has all parts, in the order of the report.
var parts = []part{
	{name: "warm", show: warmSection},
	{name: "session", show: sessionSection},
	{name: "rest", show: restSection, root: true},
	{name: "cold", show: coldSection, root: true},
	{name: "create", show: createSection},
	{name: "together", show: togetherSection},
	{name: "streams", show: streamSection},
	{name: "memory", show: memorySection},
	{name: "grants", show: grantsSection},
	{name: "work", show: workSection, root: true},
	{name: "scale", show: scaleSection},
	{name: "crowd", show: crowdSection, root: true, named: true},
	{name: "network", show: networkSection, root: true, internet: true},
	{name: "dns", show: dnsSection, root: true, internet: true, programs: []string{"dnsperf", "dnsmasq"}},
	{name: "guard", show: guardSection, root: true, internet: true, programs: []string{"ip", "haproxy"}},
	{name: "credentials", show: credentialsSection, root: true, internet: true, programs: []string{"ip", "mitmdump"}},
	{name: "processes", show: processesSection},
	{name: "e2b", show: e2bSection, root: true},
}

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
	return slices.ContainsFunc(cfg.chosen(), func(p part) bool { return slices.Contains(names, p.name) })
}

// chosen returns the parts that are to be measured.
func (cfg settings) chosen() []part {
	return slices.DeleteFunc(slices.Clone(parts), func(p part) bool {
		if len(cfg.parts) == 0 {
			return p.named
		}
		return !slices.Contains(cfg.parts, p.name)
	})
}

// checkMeans returns an error if something is missing for the chosen parts.
func checkMeans(cfg settings) error {
	for _, p := range cfg.chosen() {
		if p.root && os.Geteuid() != 0 {
			return fmt.Errorf("the section %s needs root: run this as root, or choose others with --sections", p.name)
		}
		for _, program := range p.programs {
			if _, err := exec.LookPath(program); err != nil {
				return fmt.Errorf("no %s: run `scripts/setup.sh bench`, or choose sections without %s", program, p.name)
			}
		}
	}
	return nil
}
