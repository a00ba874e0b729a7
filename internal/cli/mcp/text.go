package mcp

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/hints"
	"github.com/daycare-run/sandbox/internal/utf8cut"
)

// inTools says in the words of the tools what a message of the service says in the API's.
var inTools = strings.NewReplacer(
	"read it with binary, or download it", "read its bytes with encoding base64",
	"download it, or a part of it", "read a part of it with exec",
	"it was started without ready", "it was started without readyPort or readyCommand",
	"ready.command", "readyCommand",
	"ready.port", "readyPort",
)

// An output is cut to its first and last bytes: more would only fill the agent's memory.
const (
	keptHead = 20_000
	keptTail = 10_000
)

// clipped collects an output as it comes, and keeps its beginning and its end.
type clipped struct {
	mu    sync.Mutex
	head  []byte
	tail  []byte // at most twice keptTail
	total int
}

func (c *clipped) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(p)
	c.total += n
	if room := keptHead - len(c.head); room > 0 {
		room = min(room, len(p))
		c.head, p = append(c.head, p[:room]...), p[room:]
	}
	c.tail = append(c.tail, p...)
	if len(c.tail) > 2*keptTail {
		c.tail = append(c.tail[:0], c.tail[len(c.tail)-keptTail:]...)
	}
	return n, nil
}

func (c *clipped) size() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.total
}

// asText returns bytes as text; invalid UTF-8 becomes U+FFFD.
func asText(data []byte) string { return strings.ToValidUTF8(string(data), "\uFFFD") }

// String returns the output as text, with a notice where something is left out.
func (c *clipped) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.total <= keptHead+keptTail {
		return asText(slices.Concat(c.head, c.tail))
	}
	head, tail := c.head[:utf8cut.Whole(c.head)], utf8cut.Tail(c.tail, keptTail)
	return fmt.Sprintf(
		"%s\n[%d bytes are left out here; write the output to a file and read parts of it, or filter it]\n%s",
		asText(head), c.total-len(head)-len(tail), asText(tail))
}

// text returns a result with one text.
func text(what string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: what}}}
}

// resultText returns a command's result for an agent: what the command printed, then notices about
// it.
func resultText(stdout, stderr string, r types.Result, denied []string) string {
	var all strings.Builder
	all.WriteString(stdout)
	part := func(format string, args ...any) {
		if all.Len() > 0 && !strings.HasSuffix(all.String(), "\n") {
			all.WriteString("\n")
		}
		fmt.Fprintf(&all, format, args...)
	}
	if stderr != "" {
		part("[stderr]\n%s", stderr)
	}
	switch {
	case r.TimedOut:
		part("[the command was ended because its time was up; give it more with timeoutMs, or use process_start]")
	case r.Signal != nil:
		part("[the command was ended by %s]", *r.Signal)
	case r.ExitCode != nil && *r.ExitCode != 0:
		part("[exit code %d]", *r.ExitCode)
	case all.Len() == 0:
		part("[exit code 0, nothing printed]")
	}
	for _, refusal := range r.Egress {
		remedy := hints.Remedy(hints.MCP, refusal, denied)
		if remedy != "" {
			remedy = "; " + remedy
		}
		what := "was refused"
		if refusal.Verdict == types.VerdictFailed { // allowed
			what = "could not be reached"
		}
		part("[network: %s %s (%s): %s%s]", nameOf(refusal), what, refusal.Via, refusal.Reason,
			remedy)
	}
	if r.EgressMore > 0 {
		part("[network: %d more names could not be reached]", r.EgressMore)
	}
	for _, h := range hints.Say(hints.MCP, r.Hints) {
		part("[%s]", h.Message)
	}
	return all.String()
}

func nameOf(r types.Refusal) string {
	switch {
	case r.Name == "":
		return "a host without a name"
	case r.Port != 0:
		return fmt.Sprintf("%q at port %d", r.Name, r.Port)
	}
	return fmt.Sprintf("%q", r.Name)
}

// asJSON returns a value as indented JSON, which agents read well.
func asJSON(value any) string {
	encoded, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err.Error()
	}
	return string(encoded)
}
