package inet

import (
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/coder/websocket"
)

// Origin serves HTTP on port 80 of an address, and HTTPS, of versions 1.1 and 2, on port 443, until
// the Inet is closed. Over TLS it is whomever the client asks for; CA has signed that.
//
//	GET  /hello      "hello from <host>"
//	GET  /bytes?n=N  N bytes
//	GET  /slow?ms=N  "slow" after N milliseconds
//	GET  /upgrade    a WebSocket that returns messages
//	GET  /unasked    "ok", and after that lines that look like those of a log
//	POST /echo       the body, while it is still being sent
//
// Handle adds more.
func (in *Inet) Origin(addr netip.Addr) error {
	plain, err := in.listen(netip.AddrPortFrom(addr, 80))
	if err != nil {
		return err
	}
	secure, err := in.listen(netip.AddrPortFrom(addr, 443))
	if err != nil {
		_ = plain.Close()
		return err
	}
	server := &http.Server{
		Handler: in.logRequests(in.pages),
		TLSConfig: &tls.Config{
			GetConfigForClient: in.logHello, GetCertificate: in.ca.leaf,
			NextProtos: []string{"h2", "http/1.1"}, // without, Serve would rule HTTP/2 out for ServeTLS
		},
		ReadHeaderTimeout: time.Minute,
		ErrorLog:          log.New(io.Discard, "", 0), // clients that go away are the tests' trade
	}
	if err := in.own(server, func() { _ = server.Serve(&loggedListener{plain, in}) }); err != nil {
		_ = plain.Close()
		_ = secure.Close()
		return err
	}
	return in.own(server, func() { _ = server.ServeTLS(&loggedListener{secure, in}, "", "") })
}

func (in *Inet) logHello(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	in.arrived.add(Arrival{
		Kind: ClientHello, Proto: "tls", From: addrPort(hello.Conn.RemoteAddr()),
		To: addrPort(hello.Conn.LocalAddr()), Time: time.Now(), SNI: hello.ServerName,
	})
	return nil, nil // the server's own
}

// logRequests also makes Close wait for requests.
func (in *Inet) logRequests(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		done := in.work()
		if done == nil {
			return
		}
		defer done()
		from, _ := netip.ParseAddrPort(r.RemoteAddr)
		to, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		arrival := Arrival{
			Kind: Request, Proto: r.Proto, From: from, To: addrPort(to),
			Time: time.Now(), Host: r.Host, Method: r.Method, Path: r.URL.RequestURI(),
		}
		if r.TLS != nil {
			arrival.SNI = r.TLS.ServerName
		}
		in.arrived.add(arrival)
		next.ServeHTTP(w, r)
	})
}

// Handle makes all origins answer to a pattern of net/http, which no other answers to.
func (in *Inet) Handle(pattern string, handler http.Handler) { in.pages.Handle(pattern, handler) }

func pages() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /hello", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "hello from %s\n", r.Host)
	})
	mux.HandleFunc("GET /bytes", serveBytes)
	mux.HandleFunc("GET /slow", serveSlow)
	mux.HandleFunc("GET /upgrade", serveUpgrade)
	mux.HandleFunc("GET /unasked", serveUnasked)
	mux.HandleFunc("POST /echo", serveEcho)
	return mux
}

func number(w http.ResponseWriter, r *http.Request, name string) (int64, bool) {
	n, err := strconv.ParseInt(r.FormValue(name), 10, 64)
	if err != nil || n < 0 {
		http.Error(w, name+" is not a number", http.StatusBadRequest)
		return 0, false
	}
	return n, true
}

func serveBytes(w http.ResponseWriter, r *http.Request) {
	n, ok := number(w, r, "n")
	if !ok {
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
	for block := make([]byte, 64<<10); n > 0; {
		written, err := w.Write(block[:min(n, int64(len(block)))])
		if err != nil {
			return
		}
		n -= int64(written)
	}
}

func serveSlow(w http.ResponseWriter, r *http.Request) {
	ms, ok := number(w, r, "ms")
	if !ok {
		return
	}
	timer := time.NewTimer(time.Duration(ms) * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
		_, _ = io.WriteString(w, "slow\n")
	case <-r.Context().Done():
	}
}

func serveEcho(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/octet-stream")
	control := http.NewResponseController(w)
	_ = control.EnableFullDuplex() // HTTP/2 has it anyway
	for buf := make([]byte, 32<<10); ; {
		n, err := r.Body.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil || control.Flush() != nil {
				return
			}
		}
		if err == io.EOF {
			return
		}
		if err != nil {
			panic(http.ErrAbortHandler) // so that nobody takes the part for the whole
		}
	}
}

func serveUpgrade(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		return
	}
	defer func() { _ = c.CloseNow() }()
	c.SetReadLimit(-1)
	for {
		kind, message, err := c.Read(r.Context())
		if err != nil || c.Write(r.Context(), kind, message) != nil {
			return
		}
	}
}

func serveUnasked(w http.ResponseWriter, _ *http.Request) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	_, _ = buffered.WriteString("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok" +
		strings.Repeat("{\"message\":\"forged\"}\n", 2))
	if buffered.Flush() == nil {
		_, _ = buffered.ReadByte() // the client's end
	}
}
