package api

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/daycare-run/sandbox/api/types"
)

func TestBothEndsAreKept(t *testing.T) {
	for _, tt := range []struct {
		name, output, want string
		cut                *types.Cut
		encoding           types.Encoding
	}{
		{"nothing", "", "", nil, types.Text},
		{"as much as may be", "12345678", "12345678", nil, types.Text},
		{"one more", "12345x6789", "12346789", &types.Cut{At: 4, Bytes: 2}, types.Text},
		{"much more", "1234" + strings.Repeat("x", 1000) + "6789", "12346789", &types.Cut{At: 4, Bytes: 1000}, types.Text},
		{"cut in characters", "12€xxx€89", "1289", &types.Cut{At: 2, Bytes: 9}, types.Text},
		{"a whole character at each cut", "1€xxx€9", "1€€9", &types.Cut{At: 4, Bytes: 3}, types.Text},
		{"no text", "\xff234xxx678\xff", "/zIzNDY3OP8=", &types.Cut{At: 4, Bytes: 3}, types.Base64},
	} {
		for _, piece := range []int{1, 3, 5000} {
			k := kept{limit: 8}
			for rest := tt.output; rest != ""; {
				size := min(piece, len(rest))
				if n, err := k.Write([]byte(rest[:size])); n != size || err != nil {
					t.Fatal(n, err)
				}
				rest = rest[size:]
			}
			text, encoding, cut := k.encoded()
			if diff := cmp.Diff(tt.cut, cut); text != tt.want || encoding != tt.encoding || diff != "" {
				t.Errorf("%s, in pieces of %d: %q %q %s", tt.name, piece, text, encoding, diff)
			}
			if len(k.head)+len(k.tail) > 12 {
				t.Errorf("%s: %d bytes are held", tt.name, len(k.head)+len(k.tail))
			}
		}
	}
	one := kept{limit: 1}
	_, _ = one.Write([]byte("abc"))
	if text, _, cut := one.encoded(); text != "a" || cut.Bytes != 2 {
		t.Errorf("%q %+v", text, cut)
	}
}
