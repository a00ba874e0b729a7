package api

import (
	"fmt"
	"net/http"

	"github.com/coder/websocket"
	cerrdefs "github.com/containerd/errdefs"
)

// upgrade makes a request a WebSocket, which the caller closes. Both results are nil when nobody is
// left to answer.
func upgrade(w http.ResponseWriter, req *http.Request) (*websocket.Conn, error) {
	out := &contentWriter{ResponseWriter: w}
	conn, err := websocket.Accept(out, req, &websocket.AcceptOptions{
		CompressionMode:    websocket.CompressionDisabled,
		InsecureSkipVerify: true, // the authenticator has checked Origin
	})
	switch {
	case err == nil:
		return conn, nil
	case out.refused == 0: // the connection was hijacked, and lost
		return nil, nil
	default:
		return nil, fmt.Errorf("cannot open a WebSocket: %w: %w", err, cerrdefs.ErrInvalidArgument)
	}
}
