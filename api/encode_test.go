package api

import (
	"bytes"
	"encoding/base64"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/sandbox"
	"github.com/daycare-run/sandbox/internal/warm"
)

func TestEncodings(t *testing.T) {
	for _, tt := range []struct {
		name, data, text string
		encoding         types.Encoding
	}{
		{"empty", "", "", types.Text},
		{"text", "é\r\n", "é\r\n", types.Text},
		{"NUL is text", "a\x00b", "a\x00b", types.Text},
		{"bytes", "\xff\x00", "/wA=", types.Base64},
		{"half a character", "a\xe2\x82", "YeKC", types.Base64},
	} {
		if text, encoding := encodePart([]byte(tt.data)); text != tt.text || encoding != tt.encoding {
			t.Errorf("%s: %q %q, want %q %q", tt.name, text, encoding, tt.text, tt.encoding)
		}
	}
}

// TestTextStaysText cuts a text into two and three parts at every boundary: no part is base64.
func TestTextStaysText(t *testing.T) {
	const text = "aé€😀z\r\n\u0000ñ"
	for i := range len(text) + 1 {
		for j := i; j <= len(text); j++ {
			var stream textStream
			var got bytes.Buffer
			for _, part := range []string{text[:i], text[i:j], text[j:]} {
				data := stream.next([]byte(part))
				if !utf8.Valid(data) {
					t.Fatalf("cut at %d and %d: part %q", i, j, data)
				}
				got.Write(data)
			}
			if got.String() != text || len(stream.rest) > 0 {
				t.Fatalf("cut at %d and %d: %q with %q left", i, j, got.String(), stream.rest)
			}
		}
	}
}

// FuzzTextStream holds that the parts of a stream, decoded, are what was printed.
func FuzzTextStream(f *testing.F) {
	f.Add([]byte("aé€😀"), []byte{1, 1, 2, 3})
	f.Add([]byte("\xf0\x9f\x98\xff\xe2\x82"), []byte{3, 1})
	f.Add([]byte("\x80\x80\x80\x80\xc3"), []byte{0, 4, 1})
	f.Fuzz(func(t *testing.T, data, sizes []byte) {
		var stream textStream
		var got []byte
		take := func(part []byte) {
			text, encoding := encodePart(part)
			if !utf8.ValidString(text) {
				t.Fatalf("%q is no string for JSON", text)
			}
			if encoding == types.Base64 {
				decoded, err := base64.StdEncoding.DecodeString(text)
				if err != nil {
					t.Fatal(err)
				}
				text = string(decoded)
			}
			got = append(got, text...)
		}
		rest := data
		for _, size := range append(sizes, 255) {
			n := min(int(size), len(rest))
			// The stream must not keep what it is given.
			part := bytes.Clone(rest[:n])
			take(stream.next(part))
			clear(part)
			rest = rest[n:]
			if len(stream.rest) >= utf8.UTFMax {
				t.Fatalf("%d bytes wait", len(stream.rest))
			}
		}
		take(stream.rest)
		if want := data[:len(data)-len(rest)]; !bytes.Equal(got, want) {
			t.Fatalf("%q became %q", want, got)
		}
	})
}

func TestResults(t *testing.T) {
	zero, code := 0, 127
	kill, realtime := "SIGKILL", "SIG34"
	for _, tt := range []struct {
		name   string
		result warm.Result
		want   types.Result
	}{
		{"success", warm.Result{}, types.Result{ExitCode: &zero}},
		{"cold", warm.Result{Cold: true}, types.Result{ExitCode: &zero, Cold: true}},
		{"killed", warm.Result{Result: session.Result{Signal: syscall.SIGKILL}}, types.Result{Signal: &kill, Failed: true}},
		{"killed by a signal without a name", warm.Result{Result: session.Result{Signal: 34}}, types.Result{Signal: &realtime, Failed: true}},
		{"exit with 0 after the time was up", warm.Result{Result: session.Result{TimedOut: true}}, types.Result{ExitCode: &zero, Failed: true, TimedOut: true}},
		{"truncated is no failure", warm.Result{Result: session.Result{Truncated: true}}, types.Result{ExitCode: &zero, Truncated: true}},
		{"not found", warm.Result{Result: session.Result{ExitCode: 127, CommandFault: "x"}}, types.Result{ExitCode: &code, Failed: true}},
	} {
		tt.want.Cwd, tt.want.DurationMs, tt.want.Egress, tt.want.Hints = "/home", 1.5, []types.Refusal{}, []types.Hint{}
		got := result(sandbox.Result{Result: tt.result, Cwd: "/home", Duration: 1500 * time.Microsecond})
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: want (-), got (+):\n%s", tt.name, diff)
		}
	}
}
