package strictjson

import (
	"fmt"
	"strings"
	"testing"
)

// repeated is n values with commas between them. Of a format, it is given the number of each.
func repeated(n int, format string) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strings.ReplaceAll(format, "%", fmt.Sprint(i)))
	}
	return b.String()
}

// A text of few bytes a value is not read into many times its size.
func TestValuesAreBounded(t *testing.T) {
	const beside = 1 // the member that has the list or object
	var o outer
	for _, tt := range []struct {
		name, text, field string
		into              any
		has               func() int
	}{
		{"list", `{"list":[` + repeated(MaxValues, `{}`) + `]}`, "list", &o, func() int { return len(o.List) }},
		{"list in an object in a list", `{"list":[{"ports":[` + repeated(MaxValues, `1`) + `]}]}`, "list[0].ports", &o, func() int { return len(o.List) }},
		{"members in a list", `{"list":[` + repeated(MaxValues, `{"ports":[]}`) + `]}`, fmt.Sprintf("list[%d]", MaxValues/2-beside), &o, func() int { return len(o.List) }},
		{"map", `{"map":{` + repeated(MaxValues, `"%":""`) + `}}`, "map", &o, func() int { return len(o.Map) }},
		{"several", `{"map":{` + repeated(MaxValues/2, `"%":""`) + `},"list":[` + repeated(MaxValues/2, `{}`) + `]}`, "list", &o, func() int { return len(o.Map) + len(o.List) }},
		{"the whole", `{` + repeated(MaxValues+1, `"%":""`) + `}`, "all", &map[string]string{}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o = outer{}
			want := fmt.Sprintf("%s: the document has more than %d values", tt.field, MaxValues)
			faults := Decode([]byte(tt.text), tt.into, Options{Root: "all"})
			if len(faults) != 1 || faults[0].Error() != want {
				t.Errorf("%.500v, want %s", faults, want)
			}
			if tt.has != nil && tt.has() > MaxValues {
				t.Errorf("%d were read", tt.has())
			}
			if n, err := Count([]byte(tt.text), "all"); n != MaxValues || err == nil || err.Error() != want {
				t.Errorf("%d are counted: %v, want %s", n, err, want)
			}
		})
	}
}

// As many as there may be are read.
func TestMostValues(t *testing.T) {
	for name, text := range map[string]string{
		"list": `{"list":[` + repeated(MaxValues-1, `{}`) + `]}`,
		"map":  `{"map":{` + repeated(MaxValues-1, `"%":""`) + `}}`,
	} {
		var o outer
		if faults := Decode([]byte(text), &o, Options{}); len(faults) > 0 || len(o.List)+len(o.Map) != MaxValues-1 {
			t.Errorf("%s: %d and %d, %v", name, len(o.List), len(o.Map), faults)
		}
		if n, err := Count([]byte(text), "all"); n != MaxValues || err != nil {
			t.Errorf("%s: %d, %v", name, n, err)
		}
	}
}

func TestCount(t *testing.T) {
	const deep = 10_000 // as deep as a text may be
	for text, want := range map[string]int{
		``: 0, `null`: 0, `"a"`: 0, `{}`: 0, `[]`: 0, `[[],{}]`: 2, `{"a":1,"a":2}`: 2, `{"a":{"b":[1,"x",null]},"c":true}`: 6,
		strings.Repeat("[", deep) + strings.Repeat("]", deep): deep - 1,
		`[1,2`: 2, `[1,x`: 1, `{"a"`: 0, `{}{"a":1}`: 1,
	} {
		if n, err := Count([]byte(text), ""); n != want || err != nil {
			t.Errorf("%s: %d, %v, want %d", text, n, err, want)
		}
	}
}
