package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Client is the service's connection to a gateway. Its sockets listen in the gateway's namespace.
// It is safe for concurrent use.
type Client struct {
	// Space is the namespace.
	Space *os.File
	// DNSOverUDP and DNSOverTCP are at the configuration's address.
	DNSOverUDP []*net.UDPConn
	DNSOverTCP *net.TCPListener
	// TLS and HTTP accept connections to ports 443 and 80 of any address, and Ports those to
	// further ports, by number.
	TLS, HTTP *net.TCPListener
	Ports     map[uint16]*net.TCPListener
	// Refused is where the kernel tells what it refuses, for ReadRefused; nil, for the reason
	// Untold, if it cannot.
	Refused *os.File
	Untold  error

	telling sync.Mutex // held while what the kernel has told is passed on
	told    [1 << 13]byte

	mu   sync.Mutex
	conn *net.UnixConn
	late int // answers that are still to come, to requests that were given up
	// patience is how long it waits for an answer.
	patience time.Duration
}

const (
	// startPatience is how long a gateway that was just started may take to listen.
	startPatience = 10 * time.Second
	// patience bounds the wait for an answer, which comes within a millisecond.
	patience = 5 * time.Second
)

// Dial connects to the gateway that shares the folder dir and was made with the configuration.
func Dial(ctx context.Context, dir string, c Config) (*Client, error) {
	conn, err := dial(ctx, dir)
	if err != nil {
		return nil, err
	}
	client := &Client{conn: conn, patience: patience}
	said, files, err := client.ask(request{Do: doOpen})
	if err == nil {
		err = client.take(said, files, c)
	}
	if err != nil {
		client.Close()
		return nil, fmt.Errorf("cannot get the gateway's sockets: %w", err)
	}
	client.Refused, client.Untold = client.refused()
	return client, nil
}

// dial connects to the gateway, and waits for one that is starting.
func dial(ctx context.Context, dir string) (*net.UnixConn, error) {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	folder, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot open the gateway's folder: %w", err)
	}
	defer folder.Close()
	// By descriptor: a socket's name has at most 107 bytes, and the folder's may have more.
	name := fmt.Sprintf("/proc/self/fd/%d/%s", folder.Fd(), socketName)
	for {
		conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: name, Net: "unixpacket"})
		if err == nil {
			return conn, nil
		}
		if fault, read := os.ReadFile(filepath.Join(dir, faultName)); read == nil {
			return nil, fmt.Errorf("the gateway could not start: %s", fault)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("the gateway does not answer: %w", err)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// take makes sockets of the files that were received, and closes the files.
func (c *Client) take(said answer, files []*os.File, cfg Config) error {
	defer func() { closeAll(files) }() // all but the namespace's
	const fixed = 4                    // the namespace, DNS over TCP, TLS and HTTP
	if said.UDP < 1 || len(files) != fixed+said.UDP+len(cfg.Ports) {
		return fmt.Errorf("got %d descriptors, %d of them for UDP", len(files), said.UDP)
	}
	c.Space, files = files[0], files[1:]
	for _, f := range files[:said.UDP] {
		conn, err := net.FilePacketConn(f)
		if err != nil {
			return err
		}
		udp, is := conn.(*net.UDPConn)
		if !is {
			return errors.New("a socket is not for UDP")
		}
		c.DNSOverUDP = append(c.DNSOverUDP, udp)
	}
	c.Ports = map[uint16]*net.TCPListener{}
	for i, f := range files[said.UDP:] {
		l, err := net.FileListener(f)
		if err != nil {
			return err
		}
		tcp, is := l.(*net.TCPListener)
		switch {
		case !is:
			return errors.New("a socket is not for TCP")
		case i == 0:
			c.DNSOverTCP = tcp
		case i == 1:
			c.TLS = tcp
		case i == 2:
			c.HTTP = tcp
		default:
			c.Ports[cfg.Ports[i-3]] = tcp
		}
	}
	return nil
}

// Attach connects a container whose interface is in the namespace as LinkName(addr). It
// may be repeated.
func (c *Client) Attach(addr netip.Addr, mac net.HardwareAddr) error {
	_, _, err := c.ask(request{Do: doAttach, Addr: addr, MAC: mac.String()})
	return err
}

// Detach removes a container's interface, if it is there: nothing comes from the container any
// more.
func (c *Client) Detach(addr netip.Addr) error {
	_, _, err := c.ask(request{Do: doDetach, Addr: addr})
	return err
}

// Attached lists the addresses that have an interface.
func (c *Client) Attached() ([]netip.Addr, error) {
	said, _, err := c.ask(request{Do: doList})
	return said.Addrs, err
}

// Restart takes over a gateway whose service has ended: it detaches all but the known addresses,
// and discards what waits in the sockets, before anybody takes anything from them. Some of that may
// be from containers that have gone, and only the address tells whose it was, which the next
// container may have.
func (c *Client) Restart(known map[netip.Addr]bool) error {
	attached, err := c.Attached()
	if err != nil {
		return err
	}
	var faults []error
	for _, addr := range attached {
		if !known[addr] {
			faults = append(faults, c.Detach(addr))
		}
	}
	if err := errors.Join(faults...); err != nil {
		return err
	}
	return c.discard()
}

// Close closes the connection and the sockets. The gateway keeps its own descriptors.
func (c *Client) Close() {
	_ = c.conn.Close()
	for _, f := range []*os.File{c.Space, c.Refused} {
		if f != nil {
			_ = f.Close()
		}
	}
	for _, conn := range c.DNSOverUDP {
		_ = conn.Close()
	}
	for _, l := range c.listeners() {
		if l != nil {
			_ = l.Close()
		}
	}
}

func (c *Client) listeners() []*net.TCPListener {
	return slices.AppendSeq([]*net.TCPListener{c.DNSOverTCP, c.TLS, c.HTTP}, maps.Values(c.Ports))
}

// ask sends a request and returns its answer, and the files that came with it.
func (c *Client) ask(r request) (said answer, files []*os.File, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	text, err := json.Marshal(r)
	if err != nil {
		return said, nil, err
	}
	if err := c.conn.SetDeadline(time.Now().Add(c.patience)); err != nil {
		return said, nil, fmt.Errorf("cannot ask the gateway: %w", err)
	}
	for ; c.late > 0; c.late-- {
		if _, files, err = c.receive(); err != nil {
			return said, nil, err
		}
		closeAll(files)
	}
	if _, err := c.conn.Write(text); err != nil {
		return said, nil, fmt.Errorf("cannot ask the gateway: %w", err)
	}
	c.late++
	if said, files, err = c.receive(); err != nil {
		return said, nil, err
	}
	c.late--
	if said.Error != "" {
		closeAll(files)
		return answer{}, nil, errors.New(said.Error)
	}
	return said, files, nil
}

// receive receives the next answer. The gateway answers in the order of the requests.
func (c *Client) receive() (said answer, files []*os.File, err error) {
	message, rights := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(4*253))
	n, carried, _, _, err := c.conn.ReadMsgUnix(message, rights)
	if err != nil {
		return said, nil, fmt.Errorf("the gateway does not answer: %w", err)
	}
	files, err = filesIn(rights[:carried])
	if err == nil {
		err = json.Unmarshal(message[:n], &said)
	}
	if err != nil {
		closeAll(files)
		said = answer{Error: err.Error()} // an answer has come all the same
		return said, nil, nil
	}
	return said, files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

func filesIn(rights []byte) (files []*os.File, err error) {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return nil, err
	}
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "gateway"))
		}
	}
	return files, nil
}
