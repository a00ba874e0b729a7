package types

// Failure is the body of every answer that is not a success.
type Failure struct {
	Error Error `json:"error"`
}

// Error is what went wrong.
type Error struct {
	Kind    Kind   `json:"kind"`
	Message string `json:"message"`
	// Limit is the quota that is used up, by its key in the settings, such as "sandboxes": the
	// user's, the token's, or the total. Empty for all other errors.
	Limit string `json:"limit,omitempty"`
	// RequestID is the answer's X-Request-Id, which the service logs with the call; at the end of a
	// stream, the stream's. The error of a command in a list has none.
	RequestID string `json:"requestId,omitempty"`
}

// Kind is a class of errors.
type Kind string

// The kinds and their HTTP status.
const (
	Invalid     Kind = "invalid"     // 400, 405 for a method that the path does not have, or 416 for a Range beyond the end
	Denied      Kind = "denied"      // 403, or 401 for a caller without a known token
	NotFound    Kind = "notFound"    // 404
	Conflict    Kind = "conflict"    // 409
	TooLarge    Kind = "tooLarge"    // 413 for a request, or 507 for a disk or quota that is full
	Busy        Kind = "busy"        // 429
	Engine      Kind = "engine"      // 502
	Unavailable Kind = "unavailable" // 503
)

// Kinds lists every Kind.
var Kinds = []Kind{Invalid, Denied, NotFound, Conflict, TooLarge, Busy, Engine, Unavailable}
