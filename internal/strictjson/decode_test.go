package strictjson

import (
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
)

type inner struct {
	Ports []int `json:"ports"`
}

type embedded struct {
	Some string `json:"some"`
}

type outer struct {
	Name  string            `json:"name"`
	Count *int64            `json:"count,omitempty"`
	Share float64           `json:"share"`
	On    bool              `json:"on"`
	Inner inner             `json:"inner"`
	List  []inner           `json:"list"`
	Map   map[string]string `json:"map"`
	Any   jsontext.Value    `json:"any"`
	embedded
	hidden string
}

func TestDecode(t *testing.T) {
	three := int64(3)
	got := outer{Map: map[string]string{"old": "x"}, Name: "kept"}
	text := `{"count":3,"share":0.5,"on":true,"inner":{"ports":[]},"list":[{"ports":[1,2]},{}],"map":{"a":"b"},"any":null,"some":"x"}`
	if faults := Decode([]byte(text), &got, Options{}); faults != nil {
		t.Fatal(faults)
	}
	want := outer{
		Name: "kept", Count: &three, Share: 0.5, On: true, Inner: inner{Ports: []int{}}, List: []inner{{Ports: []int{1, 2}}, {}},
		Map: map[string]string{"a": "b"}, Any: jsontext.Value("null"), embedded: embedded{"x"},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(outer{})); diff != "" {
		t.Error(diff)
	}
}

func TestFaults(t *testing.T) {
	for _, tt := range []struct{ name, text, open, secret string }{
		{"all at once", `{"name":7,"nam":1,"on":"x","name":"y"}`,
			`name: want a string, got 7|nam: unknown key (did you mean name?)|on: want true or false, got "x"|name: is given more than once, here as "y"`,
			`name: want a string, got a number|nam: unknown key (did you mean name?)|on: want true or false, got a string|name: is given more than once`},
		{"below", `{"inner":{"ports":[1,"x",2.5]},"list":[{},{"port":1}],"map":{"a b":1}}`,
			`inner.ports[1]: want a whole number, got "x"|inner.ports[2]: want a whole number, got 2.5|list[1].port: unknown key (did you mean ports?)|map."a b": want a string, got 1`,
			`inner.ports[1]: want a whole number, got a string|inner.ports[2]: want a whole number, got 2.5|list[1].port: unknown key (did you mean ports?)|map."a b": want a string, got a number`},
		{"nulls", `{"count":null,"list":null,"map":null,"inner":null,"share":null}`,
			`count: want a whole number, got null|list: want a list of objects, got null|map: want an object of strings, got null|inner: want an object, got null|share: want a number, got null`, ""},
		{"hidden fields are none", `{"hidden":"x","embedded":{}}`, `hidden: unknown key|embedded: unknown key`, ""},
		{"moved", `{"former":1}`, `former: unknown key: it is inner.ports now`, ""},
		{"range", `{"count":99999999999999999999,"share":1e999}`, `count: 99999999999999999999 is out of range|share: 1e999 is out of range`, ""},
		{"the whole", `[]`, `all: want an object, got []`, `all: want an object, got a list`},
		{"empty", ``, `line 1, column 1: the JSON ends too early`, ""},
		{"broken", "{\"name\":\n\"a", `line 2, column 3, near name: the JSON ends too early`, ""},
		{"two", `{}{}`, `line 1, column 3: there is more after the first value`, ""},
		{"broken after it", `{}x`, `line 1, column 3: cannot be read as JSON: invalid character 'x' at start of value`, ""},
	} {
		for _, secret := range []bool{false, true} {
			want := tt.open
			if secret && tt.secret != "" {
				want = tt.secret
			}
			var got []string
			for _, f := range Decode([]byte(tt.text), &outer{hidden: "x"}, Options{Root: "all", Secret: secret, Moved: map[string]string{"former": "inner.ports"}}) {
				got = append(got, f.Error())
			}
			if diff := cmp.Diff(strings.Split(want, "|"), got); diff != "" {
				t.Errorf("%s, secret %t:\n%s", tt.name, secret, diff)
			}
		}
	}
}

// A text with a million faults does not get a report of all of them.
func TestFaultsAreBounded(t *testing.T) {
	if got := Decode([]byte("["+strings.Repeat(`"x",`, 100_000)+"1]"), &[]int{}, Options{}); len(got) != maxFaults {
		t.Errorf("%d faults", len(got))
	}
}
