// Command loopback shows a folder at a mount point, with caches of its own of names and attributes,
// as each host has of a network's filesystem. It serves until the mount point is unmounted.
package main

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// cached is for how long the kernel believes what it was told: what NFS begins with is three
// seconds.
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

// node knows no flags of a rename, as NFS and CephFS do not.
type node struct{ *fs.LoopbackNode }

// WrapChild has those below be such nodes, too.
func (n *node) WrapChild(_ context.Context, child fs.InodeEmbedder) fs.InodeEmbedder {
	return &node{child.(*fs.LoopbackNode)}
}

// Rename is rename(2).
func (n *node) Rename(ctx context.Context, name string, parent fs.InodeEmbedder, newName string,
	flags uint32) syscall.Errno {
	if flags != 0 {
		return syscall.EINVAL
	}
	return n.LoopbackNode.Rename(ctx, name, parent, newName, 0)
}

func serve(folder, mountPoint string) error {
	ordinary, err := fs.NewLoopbackRoot(folder)
	if err != nil {
		return err
	}
	root := &node{ordinary.(*fs.LoopbackNode)}
	root.RootData.RootNode = root
	long := cached
	server, err := fs.Mount(mountPoint, root, &fs.Options{
		EntryTimeout: &long, AttrTimeout: &long, NegativeTimeout: &long,
		NullPermissions: true, // what is closed to everyone, as masks' mount points are, is to be seen so
		MountOptions: fuse.MountOptions{AllowOther: true, DirectMountStrict: true,
			Options: []string{"default_permissions"}, FsName: folder, Name: "loopback"},
	})
	if err != nil {
		return err
	}
	server.Wait()
	return nil
}
