package launch

// Order is what the service writes to the stdin of the first program of a container that runs without
// it, as JSON, one a line: a question first, then to begin. After each it reads an Answer from stdout.
// The first program listens until it has begun, or until its stdin ends.
type Order struct {
	// AccessTimes are paths whose access times the first program is to report.
	AccessTimes []string `json:"accessTimes,omitempty"`
	// Begin lets the command of a durable process begin. The answer comes before it does.
	Begin bool `json:"begin,omitempty"`
}

// Answer is the first program's answer to an Order. No program of the tenant's has run by then.
type Answer struct {
	// AccessTimes are seconds since 1970, a dot, and nine digits, one for each path.
	AccessTimes []string `json:"accessTimes,omitempty"`
	// Fault says why the order could not be followed, or is empty.
	Fault string `json:"fault,omitempty"`
}
