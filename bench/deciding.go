package main

import (
	"fmt"
	"time"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/pathmap"
)

// deciding has the times to decide about a call with many grants, without looking at the host.
type deciding struct {
	// tags is the time to read the tags; decide, spec and fingerprint are the parts of a decision,
	// and all is the sum of these three, each time.
	tags, decide, spec, fingerprint, all sample
	// bare is the sum for a call without tags to the same sandbox.
	bare sample
}

const (
	decidingMounts, decidingTags = 20, 50
	// decidingWarmUps is how many decisions precede the first that counts.
	decidingWarmUps = 500
)

// measureDeciding takes turns between a call with all tags and one without any.
func (l *lab) measureDeciding() (found deciding, err error) {
	subject, tags, err := manyGrants()
	if err != nil {
		return found, err
	}
	for turn := range l.settings.decisions + decidingWarmUps {
		into := &found
		if turn < decidingWarmUps {
			into = &deciding{}
		}
		begun := time.Now()
		grants, err := policy.ParseTags(tags, pathmap.Map{})
		if err != nil {
			return found, err
		}
		into.tags = append(into.tags, time.Since(begun))
		if err := into.decideOnce(subject, grants); err != nil {
			return found, err
		}
		var bare deciding
		if err := bare.decideOnce(subject, policy.Grants{}); err != nil {
			return found, err
		}
		into.bare = append(into.bare, bare.all...)
	}
	return found, nil
}

// decideOnce does what a call does before it looks at the host.
func (d *deciding) decideOnce(subject policy.Subject, grants policy.Grants) error {
	begun := time.Now()
	decision, err := subject.Decide(grants)
	if err != nil {
		return err
	}
	decided := time.Now()
	spec := specOf(decision)
	made := time.Now()
	if spec.Fingerprint() == "" {
		return fmt.Errorf("a spec has no fingerprint")
	}
	ended := time.Now()
	d.decide = append(d.decide, decided.Sub(begun))
	d.spec = append(d.spec, made.Sub(decided))
	d.fingerprint = append(d.fingerprint, ended.Sub(made))
	d.all = append(d.all, ended.Sub(begun))
	return nil
}

// manyGrants returns a sandbox with decidingMounts mounts, and decidingTags tags that a call to it
// may be granted.
func manyGrants() (policy.Subject, []string, error) {
	subject := policy.Subject{HasSkills: true}
	subject.Network, subject.Events = true, true
	tags := []string{policy.TagNetwork, policy.TagWorkspace}
	var err error
	if subject.WorkingDir, err = pathmap.ParseContainer("/home/ws"); err != nil {
		return subject, nil, err
	}
	projects, err := pathmap.ParseContainer("/home/projects")
	if err != nil {
		return subject, nil, err
	}
	subject.WriteDirs = []pathmap.ContainerPath{projects}
	for i := range decidingMounts {
		target, err := pathmap.ParseContainer(fmt.Sprintf("/mnt/data%02d", i))
		if err != nil {
			return subject, nil, err
		}
		subject.Mounts = append(subject.Mounts, policy.Mount{Target: target, ReadOnly: i%2 == 0})
		subject.ReadDirs = append(subject.ReadDirs, target)
		tags = append(tags, "@read:"+target.String())
	}
	for i := range decidingTags - len(tags) {
		tags = append(tags, fmt.Sprintf("@write:%s/project-%02d/build", projects, i))
	}
	return subject, tags, subject.Check()
}

// specOf makes a Spec from a decision as the service does, but with made-up names and numbers.
func specOf(d policy.Decision) dockerexec.Spec {
	const host = "/srv/daycare/users/bench/home"
	id := dockerexec.FileID{Dev: 65024, Ino: 1_234_567}
	spec := dockerexec.Spec{Platform: specPlatform, User: boxID, UID: 1000, GID: 1000, SpoolDir: "/srv/daycare/users/bench", Events: d.Events}
	for _, r := range d.View.Regions() {
		target := r.Path.String()
		switch {
		case r.Path == policy.Tmp: // every container has it
		case r.Mode >= policy.ReadOnly:
			spec.Mounts = append(spec.Mounts, dockerexec.Mount{Source: host + target, Target: target, ReadOnly: r.Mode != policy.Writable, ID: id, Verify: true})
		default:
			spec.Masks = append(spec.Masks, dockerexec.Mask{Target: target, File: r.File, Listable: r.File || r.Mode == policy.Empty, Place: host + target})
		}
	}
	for _, pin := range d.View.Pinned() {
		spec.Pins = append(spec.Pins, dockerexec.Pin{Place: host + pin.String(), Target: pin.String()})
	}
	return spec
}

// specPlatform is about as large as a real one.
var specPlatform = dockerexec.Platform{
	Instance: "0123456789abcdef", ImageID: "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
	Agent: "/var/lib/daycare/agent-0123456789abcdef", Runtime: "runsc", EventsRuntime: "runsc-events",
	MaskDir: "/var/lib/daycare/masks", ReadOnlyRoot: true, CapDrop: []string{"ALL"}, CapAdd: []string{},
	Limits: dockerexec.Limits{NanoCPUs: 2e9, Memory: 4 << 30, Pids: 512, Shm: 64 << 20, Tmp: 1 << 30, Run: 16 << 20, VarTmp: 256 << 20},
}
