package api

import (
	"encoding/base64"
	"fmt"
	"slices"
	"syscall"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/hints"
	"github.com/daycare-run/sandbox/internal/sandbox"
	"github.com/daycare-run/sandbox/internal/utf8cut"
)

// encodePart converts a part of an output to a string: text if it is UTF-8, base64 otherwise.
func encodePart(data []byte) (string, types.Encoding) {
	if utf8.Valid(data) {
		return string(data), types.Text
	}
	return base64.StdEncoding.EncodeToString(data), types.Base64
}

// textStream cuts an output into parts so that text stays text: a character that is cut off at the
// end of a part waits for the next part.
type textStream struct{ rest []byte }

// next returns the bytes to send now that data has arrived.
func (t *textStream) next(data []byte) []byte {
	if len(t.rest) > 0 {
		data = append(t.rest, data...)
		t.rest = nil
	}
	if end := utf8cut.Whole(data); end < len(data) {
		t.rest = append([]byte(nil), data[end:]...)
		data = data[:end]
	}
	return data
}

// result converts the facade's Result to JSON's form.
func result(r sandbox.Result) types.Result {
	out := types.Result{
		Failed: r.Failed(), Cwd: r.Cwd, TimedOut: r.TimedOut, Truncated: r.Truncated,
		DurationMs: milliseconds(r.Duration), Cold: r.Cold,
		Egress: refusals(r.Refused), EgressMore: r.MoreRefused, Hints: said(r.Hints),
	}
	if r.Signal != 0 {
		out.Signal = signalName(r.Signal)
	} else {
		out.ExitCode = &r.ExitCode
	}
	return out
}

// said returns hints in the API's words.
func said(list []hints.Hint) []types.Hint {
	list = hints.Say(hints.API, list)
	for i := range list {
		h := &list[i]
		h.Message, h.Path = utf8Text(h.Message), utf8Text(h.Path)
		h.Commands = slices.Clone(h.Commands)
		for j := range h.Commands {
			h.Commands[j] = utf8Text(h.Commands[j])
		}
	}
	return list
}

// signalName returns a signal's name; a real-time signal has its number instead.
func signalName(number syscall.Signal) *string {
	name := unix.SignalName(number)
	if name == "" {
		name = fmt.Sprintf("SIG%d", int(number))
	}
	return &name
}
