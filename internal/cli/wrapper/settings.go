// Package wrapper reads the settings files of a sandbox wrapper, which say what one command may
// read, write and reach, and turns them into a call to the service. It opens no file.
//
// settings.go reads a file in the form of sandbox-runtime (srt), keys.go handles the keys that mean
// nothing here or would open more, applied.go reads the sandbox.json of a durable process, roots.go
// turns paths of the host into paths inside, and plan.go puts the call together.
package wrapper

import "github.com/daycare-run/sandbox/internal/strictjson"

// Settings are the contents of a file. With the zero value, a command reads its working directory,
// writes to /tmp and has no network.
type Settings struct {
	Filesystem Filesystem `json:"filesystem"`
	Network    Network    `json:"network"`
	others
}

// Filesystem has paths: absolute, below the caller's home as ~/…, or relative to the working
// directory. Each includes everything below it, with or without a final /**.
type Filesystem struct {
	DenyRead   []string `json:"denyRead"`
	AllowRead  []string `json:"allowRead"`
	AllowWrite []string `json:"allowWrite"`
	DenyWrite  []string `json:"denyWrite"`
	otherFilesystem
}

// Network has patterns of names, as in allowedDomains and deniedDomains of a call.
type Network struct {
	AllowedDomains []string `json:"allowedDomains"`
	DeniedDomains  []string `json:"deniedDomains"`
	otherNetwork
}

// Parse reads a settings file strictly: an unknown key or a wrong type is an error that names it,
// and so is a key that would open more than the service does. The warnings are about keys that
// change nothing here.
func Parse(text []byte) (s Settings, warnings []string, _ error) {
	if faults := strictjson.Decode(text, &s,
		strictjson.Options{Root: "the file"}); len(faults) > 0 {
		return s, nil, faults
	}
	if err := s.refused(); err != nil {
		return s, nil, err
	}
	return s, s.warnings(), nil
}
