package gateway

import (
	"encoding/json"
	"net"
	"net/netip"
	"path/filepath"
	"testing"
	"time"
)

// An answer that comes late is not taken for the next one's, and nothing else comes of it.
func TestALateAnswer(t *testing.T) {
	name := filepath.Join(t.TempDir(), socketName)
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: name, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	first, addr := make(chan bool), netip.MustParseAddr("10.0.0.2")
	go func() {
		conn, err := listener.AcceptUnix()
		if err != nil {
			return
		}
		defer conn.Close()
		message := make([]byte, maxMessage)
		for says := []netip.Addr{netip.MustParseAddr("10.0.0.9")}; ; says = []netip.Addr{addr} {
			if _, err := conn.Read(message); err != nil {
				return
			}
			if says[0] != addr {
				<-first
			}
			text, _ := json.Marshal(answer{Addrs: says})
			if _, err := conn.Write(text); err != nil {
				return
			}
		}
	}()
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: name, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	client := &Client{conn: conn, patience: 50 * time.Millisecond}
	defer client.Close()
	if _, err := client.Attached(); err == nil {
		t.Error("nobody has answered")
	}
	if _, err := client.Attached(); err == nil {
		t.Error("the answer before is missing still")
	}
	first <- true
	client.patience = patience
	if got, err := client.Attached(); err != nil || len(got) != 1 || got[0] != addr {
		t.Errorf("%v, %v", got, err)
	}
}
