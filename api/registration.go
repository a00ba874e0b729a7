package api

import (
	"fmt"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/sandbox"
)

// registration converts a registration's JSON to the facade's form.
func registration(r types.Registration) sandbox.Registration {
	p := r.Permissions
	out := sandbox.Registration{
		UserID: r.UserID, WorkingDir: p.WorkingDir, WriteDirs: p.WriteDirs, ReadDirs: p.ReadDirs,
		Network: p.Network, Events: p.Events, Processes: p.Processes, Secrets: p.Secrets,
		AppID: p.AppID, SkillsDir: r.SkillsDir,
		Persistent: r.Persistent, AllowedDomains: r.AllowedDomains,
		PackageManagers: r.PackageManagers, Warm: r.Warm,
	}
	for _, m := range r.Mounts {
		out.Mounts = append(out.Mounts, sandbox.MountRequest(m))
	}
	return out
}

// describe converts a sandbox to JSON's form.
func describe(box sandbox.Sandbox) types.Sandbox {
	mounts := make([]types.Mount, len(box.Mounts))
	for i, m := range box.Mounts {
		mounts[i] = types.Mount{Source: m.Source.String(), Target: m.Target.String(),
			ReadOnly: m.ReadOnly}
	}
	return types.Sandbox{
		ID: box.ID.String(), UserID: box.User.String(),
		Permissions: types.Permissions{
			WorkingDir: box.WorkingDir.String(), WriteDirs: names(box.WriteDirs),
			ReadDirs: names(box.ReadDirs), Network: box.Network, Events: box.Events,
			Processes: box.Processes, Secrets: box.Secrets, AppID: box.AppID,
		},
		Mounts: mounts, SkillsDir: box.SkillsDir, Persistent: box.Persistent,
		AllowedDomains: box.Domains, PackageManagers: box.Presets, Paused: box.Paused, CreatedAt: box.CreatedAt,
		UpdatedAt: box.UpdatedAt,
	}
}

func names[Path fmt.Stringer](paths []Path) []string {
	list := make([]string, len(paths))
	for i, path := range paths {
		list[i] = path.String()
	}
	return list
}
