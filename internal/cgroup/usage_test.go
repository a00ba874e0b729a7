package cgroup

import (
	"fmt"
	"testing"
	"time"
)

func TestUsageOfAControlGroup(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"version 1":          {"memory/docker/c1/memory.usage_in_bytes": "4096\n", "cpuacct/docker/c1/cpuacct.usage": "2000000\n"},
		"version 1, systemd": {"memory/system.slice/docker-c1.scope/memory.usage_in_bytes": "4096\n", "cpuacct/system.slice/docker-c1.scope/cpuacct.usage": "2000000\n"},
		"version 2":          {"docker/c1/memory.current": "4096\n", "docker/c1/cpu.stat": "usage_usec 2000\nuser_usec 1500\n"},
		"version 2, systemd": {"system.slice/docker-c1.scope/memory.current": "4096\n", "system.slice/docker-c1.scope/cpu.stat": "usage_usec 2000\n"},
		"cluster, version 1": {"memory/daycaresandbox0a.slice/c1/memory.usage_in_bytes": "4096\n", "cpuacct/daycaresandbox0a.slice/c1/cpuacct.usage": "2000000\n"},
		"cluster, version 2": {"daycaresandbox0a.slice/docker-c1.scope/memory.current": "4096\n", "daycaresandbox0a.slice/docker-c1.scope/cpu.stat": "usage_usec 2000\n"},
		"a slice in a slice": {"a.slice/a-b.slice/docker-c1.scope/memory.current": "4096\n", "a.slice/a-b.slice/docker-c1.scope/cpu.stat": "usage_usec 2000\n"},
	} {
		u, err := hostMemory(t, "", files).Usage("c1")
		if err != nil || u.Memory != 4096 || u.CPU != 2*time.Millisecond || u.At.IsZero() {
			t.Errorf("%s: %+v, %v", name, u, err)
		}
	}
	// One container says nothing about where the next one is.
	h := hostMemory(t, "", map[string]string{
		"docker/c1/memory.current": "1", "docker/c1/cpu.stat": "usage_usec 1\n", "b.slice/docker-c2.scope/memory.current": "2", "b.slice/docker-c2.scope/cpu.stat": "usage_usec 1\n",
	})
	for _, want := range []int64{1, 2, 2, 1} {
		if u, err := h.Usage(fmt.Sprintf("c%d", want)); err != nil || u.Memory != want {
			t.Errorf("container %d: %+v, %v", want, u, err)
		}
	}
	for name, files := range map[string]map[string]string{
		"none":    {},
		"garbage": {"docker/c1/memory.current": "many", "docker/c1/cpu.stat": "usage_usec 1\n"},
		"no time": {"docker/c1/memory.current": "4096", "docker/c1/cpu.stat": "user_usec 1\n"},
	} {
		if u, err := hostMemory(t, "", files).Usage("c1"); err == nil {
			t.Errorf("%s: %+v", name, u)
		}
	}
}
