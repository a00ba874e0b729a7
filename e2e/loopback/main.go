// Command loopback shows a folder at a mount point, with caches of its own of names and attributes, as each host has of a
// network's filesystem. It serves until the mount point is unmounted.
package main

import (
	"fmt"
	"os"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// cached is for how long the kernel believes what it was told: what NFS begins with is three seconds.
const cached = time.Second

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: loopback FOLDER MOUNTPOINT")
		os.Exit(2)
	}
	if err := serve(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "loopback:", err)
		os.Exit(1)
	}
}

func serve(folder, mountPoint string) error {
	root, err := fs.NewLoopbackRoot(folder)
	if err != nil {
		return err
	}
	long := cached
	server, err := fs.Mount(mountPoint, root, &fs.Options{
		EntryTimeout: &long, AttrTimeout: &long, NegativeTimeout: &long,
		NullPermissions: true, // what is closed to everyone, as masks' mount points are, is to be seen so
		MountOptions:    fuse.MountOptions{AllowOther: true, DirectMountStrict: true, Options: []string{"default_permissions"}, FsName: folder, Name: "loopback"},
	})
	if err != nil {
		return err
	}
	server.Wait()
	return nil
}
