package cgroup

import "testing"

func TestRefusalsOfAControlGroup(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"version 1": {
			"memory/docker/c1/memory.usage_in_bytes": "4096\n", "pids/docker/c1/pids.events": "max 5\n",
			"memory/docker/c1/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
		},
		"version 2": {
			"a.slice/docker-c1.scope/memory.current": "4096\n", "a.slice/docker-c1.scope/pids.events": "max 5\n",
			"a.slice/docker-c1.scope/memory.events": "low 0\nhigh 0\nmax 9\noom 3\noom_kill 2\noom_group_kill 0\n",
		},
	} {
		if r, err := hostMemory(t, "", files).Refusals("c1"); err != nil || r != (Refusals{Killed: 2, Pids: 5}) {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
	for name, files := range map[string]map[string]string{
		"none":     {},
		"no count": {"docker/c1/memory.current": "1", "docker/c1/memory.events": "low 0\n", "docker/c1/pids.events": "max 5\n"},
		"no pids":  {"docker/c1/memory.current": "1", "docker/c1/memory.events": "oom_kill 2\n"},
		"garbage":  {"docker/c1/memory.current": "1", "docker/c1/memory.events": "oom_kill many\n", "docker/c1/pids.events": "max 5\n"},
	} {
		if r, err := hostMemory(t, "", files).Refusals("c1"); err == nil {
			t.Errorf("%s: %+v", name, r)
		}
	}
}
