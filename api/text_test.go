package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/warm"
)

// A text encoded in pieces is the same as one encoded whole.
func TestOutputsInPieces(t *testing.T) {
	code := 3
	for name, text := range map[string]string{
		"nothing": "", "a word": "word",
		"signs": "\x01\"\\\n\u2028<>&\x7f", "a piece": strings.Repeat("a", textPiece), "more": strings.Repeat("a", textPiece+1),
		"characters that a piece ends in": strings.Repeat("a€", textPiece), "four bytes each": "a" + strings.Repeat("𝄞", textPiece),
	} {
		for _, want := range []types.Output{
			{Stdout: text, Result: types.Result{ExitCode: &code, Cwd: "/home/\xff", Egress: []types.Refusal{}, Hints: []types.Hint{}}},
			{Stdout: "x", Stderr: text, StdoutEncoding: types.Base64, StderrEncoding: types.Base64, Result: types.Result{Egress: []types.Refusal{}, Hints: []types.Hint{}}},
		} {
			var out bytes.Buffer
			texts := []largeText{{"stdout", want.Stdout, "stdoutEncoding", want.StdoutEncoding}, {"stderr", want.Stderr, "stderrEncoding", want.StderrEncoding}}
			if err := writeTexts(&out, texts, want.Result); err != nil {
				t.Fatal(err)
			}
			var got types.Output
			if err := json.Unmarshal(out.Bytes(), &got); err != nil || got.Stdout != want.Stdout || got.Stderr != want.Stderr {
				t.Errorf("%s: %v, %.100q and %.100q", name, err, got.Stdout, got.Stderr)
			}
			want.Cwd = strings.ToValidUTF8(want.Cwd, "\uFFFD")
			got.Stdout, got.Stderr, want.Stdout, want.Stderr = "", "", "", ""
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
		}
	}
}

// Answers that nobody reads hold their outputs, but not the encoded form.
func TestOutputsThatNobodyReads(t *testing.T) {
	const calls, size = 30, 1 << 20
	signs := strings.Repeat("\x01", size) // each is six bytes of JSON
	server := newLab(t, prints(warm.Result{}, nil, "1:"+signs, "2:"+signs)).serve()
	before := heap()
	for range calls {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
			t.Fatal(err)
		}
		const body = `{"command":"x"}`
		if _, err := fmt.Fprintf(conn, "POST /v1/sandboxes/a/exec HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil {
			t.Fatal(err)
		}
		begin := make([]byte, len("HTTP/1.1 200"))
		if _, err := conn.Read(begin); err != nil || string(begin) != fmt.Sprintf("HTTP/1.1 %d", http.StatusOK) {
			t.Fatalf("%q, %v", begin, err)
		}
	}
	if each := (heap() - before) / calls; each > 3*size {
		t.Errorf("an answer keeps %d KiB of memory", each>>10)
	}
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
