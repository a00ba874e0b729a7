// Package creds defines the users inside a container: commands run as the owner of the tenant's
// home; the agent and the first process run as a user of their own, which nothing else on the host
// uses. So no command can signal, stop or trace the agent, or open what it has open.
//
// A container's processes begin as root, with the capabilities in Needed alone; Become is the first
// thing that they do.
package creds

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// IDs are the user and group that commands run as.
type IDs struct {
	UID, GID uint32
	// Bounding are the capabilities in Needed that stay in the commands' bounding set, because the
	// operator's settings have them there.
	Bounding []string
	// Root lets commands run as root, too, with all capabilities that the container was started
	// with.
	Root bool
}

// Agent returns the user that the agent runs as beside commands of uid. It is above every user that
// Docker runs a process as (2^31-1), so no other process has it. It differs for each uid: what the
// kernel counts by user, it counts by tenant.
func Agent(uid uint32) uint32 { return uid ^ 1<<31 }

// maxUID is the largest uid that has an agent's: that of the next one would be 2^32-1, which is no
// user.
const maxUID = 1<<31 - 2

// Needed are the capabilities that a container has for the agent. Except with IDs.Root, it gives up
// SETGID and SETPCAP when it has become its user, and commands have none of them.
var Needed = []string{"KILL", "SETGID", "SETPCAP", "SETUID"}

// Variable is the environment variable that tells a container's processes the IDs.
const Variable = "DAYCARE_COMMANDS_RUN_AS"

// String returns the variable's value, as Parse reads it.
func (i IDs) String() string {
	text := fmt.Sprintf("%d:%d:%s", i.UID, i.GID, strings.Join(i.Bounding, ","))
	if i.Root {
		text += ":" + asRoot
	}
	return text
}

const asRoot = "root"

// Parse is the inverse of String.
func Parse(text string) (IDs, error) {
	fail := func(why string) (IDs, error) {
		return IDs{}, fmt.Errorf("%s=%q: %s", Variable, text, why)
	}
	text, root := strings.CutSuffix(text, ":"+asRoot)
	parts := strings.Split(text, ":")
	if len(parts) != 3 {
		return fail("it is not uid:gid:capabilities")
	}
	uid, err := strconv.ParseUint(parts[0], 10, 31)
	if err != nil || uid == 0 || uid > maxUID {
		return fail("commands run as a user from 1 to 2147483646")
	}
	gid, err := strconv.ParseUint(parts[1], 10, 31)
	if err != nil {
		return fail("a group is a number from 0 to 2147483647")
	}
	i := IDs{UID: uint32(uid), GID: uint32(gid), Root: root}
	if parts[2] != "" {
		i.Bounding = strings.Split(parts[2], ",")
	}
	for _, name := range i.Bounding {
		if !slices.Contains(Needed, name) {
			return fail("there is no such capability to keep: " + name)
		}
	}
	return i, nil
}
