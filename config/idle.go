package config

import "time"

// Idle says what happens to containers for execs in which nothing runs.
type Idle struct {
	// FreezeAfter is how long after its last call a container is frozen. A frozen container takes
	// hardly any processor time, and the next call thaws it. At least 1s, or 0s for never. Default
	// 30s.
	FreezeAfter Duration `json:"freezeAfter" env:"FREEZE_AFTER" reload:"live"`

	// ReclaimAfter is how long after its last call a frozen container's memory is given back, if
	// all swap of the host is compressed memory (zram). At least 1s, or 0s for never. Default 5m.
	ReclaimAfter Duration `json:"reclaimAfter" env:"RECLAIM_AFTER" reload:"live"`

	// RemoveAfter is how long a container stays after its last call. At least 1s. Default 24h.
	RemoveAfter Duration `json:"removeAfter" env:"REMOVE_AFTER" reload:"live" former:"idleTimeout"`

	// MaxContainers is how many idle containers there may be, frozen or not; beyond that, those
	// unused for longest are removed. From 1 to 1000000. Default 200.
	MaxContainers int64 `json:"maxContainers" env:"MAX_CONTAINERS" reload:"live"`

	// MinFreeMemory is how much of the host's memory must be free: if there is less, idle
	// containers are removed, those unused for longest first. 0 removes none. Default 512Mi.
	MinFreeMemory Size `json:"minFreeMemory" env:"MIN_FREE_MEMORY" reload:"live"`
}

func (i Idle) check(f *faults) {
	if i.FreezeAfter != 0 && i.FreezeAfter < Duration(time.Second) {
		f.Add("idle.freezeAfter", "%q is less than 1s, and not 0s, which is never", i.FreezeAfter)
	}
	if i.ReclaimAfter != 0 && i.ReclaimAfter < Duration(time.Second) {
		f.Add("idle.reclaimAfter", "%q is less than 1s, and not 0s, which is never", i.ReclaimAfter)
	}
	if i.RemoveAfter < Duration(time.Second) {
		f.Add("idle.removeAfter", "%q is less than 1s", i.RemoveAfter)
	}
	f.between("idle.maxContainers", i.MaxContainers, 1, maxQuota)
	f.atLeast("idle.minFreeMemory", i.MinFreeMemory, 0)
}
