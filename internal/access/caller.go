// Package access says who is calling: by the uid at the other end of the Unix socket, or by a token over
// TCP. What a caller may then do is not decided here.
//
// caller.go has what is known of a caller, tokens.go the file of tokens, unix.go and tcp.go the two ways in,
// tls.go the latter's encryption, and folder.go whether a socket is safe where it lies.
package access

import (
	"crypto/sha256"

	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/quota"
)

// Caller is who sends a request. The zero value may do nothing.
type Caller struct {
	// Name is for logs: that of the token, or uid:1000.
	Name string
	// Users are those for whom it acts.
	Users ids.Users
	// Token is what it is bounded as; the zero value for a caller at the socket.
	Token quota.Token
	// Key says which token it is, and not what it is: of two that had one name, too. It is zero for a caller at the socket.
	Key [sha256.Size]byte
}
