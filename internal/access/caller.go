// Package access identifies the caller: by the uid at the other end of the Unix socket, or by a
// token over TCP. It does not decide what the caller may then do.
//
// caller.go defines a caller, tokens.go reads the tokens file, unix.go and tcp.go are the two ways
// in, tls.go is encryption for TCP, and folder.go checks that a socket's folder is safe.
package access

import (
	"crypto/sha256"

	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/quota"
)

// Caller is the sender of a request. The zero value may do nothing.
type Caller struct {
	// Name is for logs: the token's name, or uid:1000.
	Name string
	// Users are the users for whom it acts.
	Users ids.Users
	// Token is what quotas apply to; the zero value for a caller at the socket.
	Token quota.Token
	// Key identifies the token without revealing it, even among tokens of the same name. It is zero
	// for a caller at the socket.
	Key [sha256.Size]byte
}
