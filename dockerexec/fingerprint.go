package dockerexec

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
)

// Fingerprint computes the Spec's identity. Every call does it, so the canonical form is written by
// hand and not by reflection; a test changes each field in turn and looks for another fingerprint.
func (s Spec) Fingerprint() Fingerprint {
	sum := sha256.Sum256(canonical(make([]byte, 0, 8<<10)).spec(s.ordered()))
	return Fingerprint(hex.EncodeToString(sum[:]))
}

// canonical is a form in which different Specs have different texts: each string and each list is
// preceded by its length.
type canonical []byte

func (c canonical) number(n uint64) canonical { return binary.LittleEndian.AppendUint64(c, n) }

func (c canonical) text(s string) canonical { return append(c.number(uint64(len(s))), s...) }

func (c canonical) flags(flags ...bool) canonical {
	for _, flag := range flags {
		if flag {
			c = append(c, 1)
		} else {
			c = append(c, 0)
		}
	}
	return c
}

func (c canonical) texts(list []string) canonical {
	c = c.number(uint64(len(list)))
	for _, s := range list {
		c = c.text(s)
	}
	return c
}

func (c canonical) id(id FileID) canonical {
	return c.number(id.Dev).number(id.Ino).number(uint64(id.Since))
}

func (c canonical) spec(s Spec) canonical {
	c = c.platform(s.Platform).text(s.User).number(uint64(s.UID)).number(uint64(s.GID)).
		text(s.Passwd).text(s.Group).text(s.SpoolDir).flags(s.Events)
	c = c.text(s.Egress.Profile).texts(s.Egress.Domains).texts(s.Egress.Denied).text(s.Process.ID).
		text(s.Process.Dir)
	c = c.number(uint64(len(s.Mounts)))
	for _, m := range s.Mounts {
		c = c.text(m.Source).text(m.Target).flags(m.ReadOnly, m.Verify).id(m.ID)
	}
	c = c.number(uint64(len(s.Masks)))
	for _, m := range s.Masks {
		c = c.text(m.Target).text(m.Place).flags(m.File, m.Listable, m.Vacant, m.Absent).
			texts(m.Holds).id(m.ID)
	}
	c = c.number(uint64(len(s.Pins)))
	for _, p := range s.Pins {
		c = c.text(p.Place).text(p.Target)
	}
	c = c.number(uint64(len(s.Links)))
	for _, l := range s.Links {
		c = c.text(l.Target).id(l.ID)
	}
	if s.Persistent != "" { // Specs without it keep the fingerprint that they had before it existed
		c = c.text(s.Persistent)
	}
	if e := s.Egress; len(e.Addresses)+len(e.DeniedAddresses) > 0 { // likewise
		c = c.text("addresses").texts(e.Addresses).texts(e.DeniedAddresses)
	}
	if s.Root { // likewise
		c = c.text("root")
	}
	if len(s.Symlinks) > 0 { // likewise
		c = c.text("symlinks").number(uint64(len(s.Symlinks)))
		for _, l := range s.Symlinks {
			c = c.text(l.Target).text(l.Text)
		}
	}
	if len(s.Reaches) > 0 { // likewise
		c = c.text("reaches").number(uint64(len(s.Reaches)))
		for _, r := range s.Reaches {
			c = c.text(r.Name).text(r.Sandbox)
		}
	}
	if len(s.Egress.Secrets) > 0 { // likewise
		c = c.text("secrets").texts(s.Egress.Secrets)
	}
	if s.Bundle != "" || s.BundleAt != "" { // likewise
		c = c.text("bundle").text(s.Bundle).text(s.BundleAt)
	}
	return c
}

func (c canonical) platform(p Platform) canonical {
	c = c.text(p.Instance).text(p.DataDir).text(p.ImageID).text(p.Agent).text(p.Runtime).
		text(p.EventsRuntime).text(p.MaskDir).text(p.Bundle).text(p.BundleAt).text(p.Network)
	c = c.flags(p.ReadOnlyRoot, p.Unconfined, p.UserNamespaces).texts(p.CapDrop).texts(p.CapAdd)
	l := p.Limits
	for _, n := range []int64{l.NanoCPUs, l.Memory, l.Pids, l.OpenFiles, l.Shm, l.Tmp, l.Run,
		l.VarTmp} {
		c = c.number(uint64(n))
	}
	if p.Offline != "" { // Specs without it keep the fingerprint that they had before it existed
		c = c.text("offline").text(p.Offline)
	}
	if p.Linked != "" { // likewise
		c = c.text("linked").text(p.Linked)
	}
	if p.GVisor { // likewise
		c = c.text("gvisor")
	}
	return c
}
