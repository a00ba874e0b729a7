package api

import (
	"fmt"
	"net/http"

	"github.com/coder/websocket"
	cerrdefs "github.com/containerd/errdefs"
)

// upgrade makes a request a WebSocket. The caller closes it. Both results are nil when there is nobody left
// to answer.
func upgrade(w http.ResponseWriter, req *http.Request) (*websocket.Conn, error) {
	out := &contentWriter{ResponseWriter: w}
	conn, err := websocket.Accept(out, req, &websocket.AcceptOptions{
		CompressionMode:    websocket.CompressionDisabled,
		InsecureSkipVerify: true, // of Origin, at which the authenticator has looked
	})
	switch {
	case err == nil:
		return conn, nil
	case out.refused == 0: // the connection was taken over, and lost
		return nil, nil
	default:
		return nil, fmt.Errorf("cannot open a WebSocket: %w: %w", err, cerrdefs.ErrInvalidArgument)
	}
}
