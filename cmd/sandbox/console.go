package main

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/signal"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/console"
)

func consoleCommand(a *app) *cobra.Command {
	var listen string
	cmd := &cobra.Command{
		Use:   "console [flags]",
		Short: "Show in a browser what runs, what it may see and what it tried to reach",
		Long: `console opens a port on this host's loopback at which a browser sees the console, and prints a link with which one
browser can sign in, once. The console calls the service as this command would. It ends when it is interrupted.`,
		Example: `  sudo sandbox console
  sandbox console --url https://sandbox.example.org:7480 --token-file ~/.sandbox-token`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
			defer stop()
			listener, err := net.Listen("tcp", listen)
			if err != nil {
				return fmt.Errorf("cannot listen: %w", err)
			}
			if !listener.Addr().(*net.TCPAddr).IP.IsLoopback() {
				_ = listener.Close()
				return fmt.Errorf(
					"--listen %s is not on this host's loopback, where nobody can eavesdrop; for other hosts there is the setting tcp.console",
					listen)
			}
			c := a.client()
			defer c.Close()
			secret, host := rand.Text(), hostOf(listener.Addr())
			handler, err := oneTime(c.Proxy(), host, secret)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "http://%s/console/#key=%s\n", host, secret)
			return serveConsole(ctx, listener, handler)
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:0",
		"an address and a port of the loopback; 0 is any free port")
	_ = cmd.RegisterFlagCompletionFunc("listen", cobra.NoFileCompletions)
	return cmd
}

// hostOf returns an address as a browser has it in Host, which is without the port that http has by
// default.
func hostOf(address net.Addr) string { return strings.TrimSuffix(address.String(), ":80") }

// oneTime returns a console at a host, for whoever presents the secret first.
func oneTime(service http.Handler, host, secret string) (http.Handler, error) {
	var used atomic.Bool
	seal := make([]byte, 32)
	_, _ = rand.Read(seal) // never fails
	return console.New(console.Config{
		SealKey: seal,
		// Calls need a session, because other users of this host can reach the port, too.
		API: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if !console.InSession(req) {
				http.Error(w, "sign in at /console/", http.StatusUnauthorized)
				return
			}
			service.ServeHTTP(w, req)
		}),
		SignIn: func(given string) (string, bool) {
			same := subtle.ConstantTimeCompare([]byte(given), []byte(secret)) == 1
			return "", same && used.CompareAndSwap(false, true)
		},
		Admit: func(req *http.Request) error {
			if req.Host != host || req.Header.Get("Origin") != "" {
				return fmt.Errorf("this is %s, and not %.200q", host, req.Host)
			}
			return nil
		},
	})
}

func serveConsole(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
