package inet

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A Capture counts every IP packet that arrives in the namespace, whether anything listens for it
// or not. Its methods may be called concurrently.
type Capture struct {
	in      *Inet
	raw     *os.File
	marker  *net.UDPConn // on the host
	markers netip.AddrPort
	ended   chan struct{}

	mu      sync.Mutex // guards what follows
	packets map[Flow]int
	waiting map[uint64]chan struct{} // by the number of a marker, closed when it has arrived
	lost    uint64
}

// syncHops is how often a packet may be put into a queue on its way here, with room to spare: by
// the container, and again by the host that forwards it.
const syncHops = 4

// syncPatience is how long a marker may take.
const syncPatience = time.Minute

var lastMarker atomic.Uint64

// Capture begins to count. The caller closes the capture, or the Inet does.
func (in *Inet) Capture() (*Capture, error) {
	c := &Capture{
		in: in, ended: make(chan struct{}),
		markers: netip.AddrPortFrom(nth(in.space.pair, 2), discard),
		packets: map[Flow]int{}, waiting: map[uint64]chan struct{}{},
	}
	err := on(in.space.inside, func() (err error) {
		c.raw, err = openRaw()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot capture the test internet's packets: %w", err)
	}
	err = on(in.space.host, func() (err error) {
		c.marker, err = net.ListenUDP("udp4", &net.UDPAddr{IP: nth(in.space.pair, 1).AsSlice()})
		return err
	})
	if err != nil {
		_ = c.raw.Close()
		return nil, fmt.Errorf("cannot capture the test internet's packets: %w", err)
	}
	if err := in.own(c, c.count); err != nil {
		return nil, fmt.Errorf("cannot capture the test internet's packets: %w", err)
	}
	return c, nil
}

// Close ends the capture. What was counted stays.
func (c *Capture) Close() error {
	c.in.disown(c)
	return errors.Join(c.raw.Close(), c.marker.Close())
}

// Packets returns how many packets of each flow have arrived. What the kernel sends in one piece,
// as it does with TCP on one machine, is one packet.
func (c *Capture) Packets() map[Flow]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.packets)
}

// Seen returns how many packets have arrived whose flow has all fields that match has; its zero
// fields stand for anything.
func (c *Capture) Seen(match Flow) (count int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for flow, n := range c.packets {
		if match.matches(flow) {
			count += n
		}
	}
	return count
}

// Sync returns once everything has been counted that was sent before, by the host or by a container
// through the host. It fails when a packet was lost to the count: then nothing can be said of it.
//
// A packet waits in a queue of the CPU that sent it, and after each hop at the end of it again. So
// a marker goes through each CPU's queue, once for each hop.
func (c *Capture) Sync(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, syncPatience)
	defer cancel()
	for range syncHops {
		if err := c.round(ctx); err != nil {
			return fmt.Errorf("cannot wait for packets to arrive: %w", err)
		}
	}
	return c.complete()
}

// round sends a marker on each CPU and waits for all of them.
func (c *Capture) round(ctx context.Context) error {
	arrived := map[uint64]chan struct{}{}
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for number := range arrived {
			delete(c.waiting, number)
		}
	}()
	err := eachCPU(func() error {
		number, there := lastMarker.Add(1), make(chan struct{})
		c.mu.Lock()
		arrived[number], c.waiting[number] = there, there
		c.mu.Unlock()
		_, err := c.marker.WriteToUDPAddrPort(binary.BigEndian.AppendUint64(nil, number), c.markers)
		return err
	})
	if err != nil {
		return err
	}
	for _, there := range arrived {
		select {
		case <-there:
		case <-c.ended:
			return errors.Join(net.ErrClosed, c.complete())
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("a marker has not arrived: %w", ctx.Err()), c.complete())
		}
	}
	return nil
}

// eachCPU runs f on every CPU that the process may use, one after the other.
func eachCPU(f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		var all unix.CPUSet
		err := unix.SchedGetaffinity(0, &all)
		for cpu := 0; cpu < len(all)*64 && err == nil; cpu++ {
			if all.IsSet(cpu) {
				var one unix.CPUSet
				one.Set(cpu)
				if err = unix.SchedSetaffinity(0, &one); err == nil {
					err = f()
				}
			}
		}
		result <- err
	}()
	return <-result
}

// complete fails when the kernel had no room for packets.
func (c *Capture) complete() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	lost, err := dropped(c.raw)
	c.lost += lost
	if c.lost > 0 {
		return errors.Join(err, fmt.Errorf("%d packets arrived faster than they could be counted",
			c.lost))
	}
	return err
}

// count counts until the socket is closed.
func (c *Capture) count() {
	defer close(c.ended)
	for buf := make([]byte, snapLength); ; {
		n, err := c.raw.Read(buf)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil { // the link is down, or a frame was empty
			continue
		}
		if flow, payload, ok := parse(buf[:n]); ok {
			c.add(flow, markerNumber(payload))
		}
	}
}

func (c *Capture) add(flow Flow, number uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.isMarker(flow) {
		c.packets[flow]++
	} else if there := c.waiting[number]; there != nil { // else it is another capture's
		delete(c.waiting, number)
		close(there)
	}
}
