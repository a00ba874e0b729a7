// Package strictjson reads JSON that people and callers write: settings, tokens, wrapper settings
// and requests. Everything that is unknown, unreadable or duplicate is a fault. It reports all
// faults together, each with its field.
//
// decode.go decodes, count.go bounds the number of values, fault.go describes faults, and
// nearest.go suggests what was meant.
package strictjson

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Options say how a text is read and how its faults are reported.
type Options struct {
	// Root is the name of the whole text in a fault, such as "the body".
	Root string
	// Secret keeps the text's values out of all faults.
	Secret bool
	// Moved maps fields of former versions to those that replaced them.
	Moved map[string]string
	// Former maps fields' former names to their present ones: either one sets the field, but both
	// together are a fault.
	Former map[string]string
}

// maxFaults is how many faults are reported; after that, the rest is not read.
const maxFaults = 100

var errEnough = errors.New("there are too many faults")

// Decode sets what into points to from text, and returns everything that is wrong with text. A
// field whose value is refused keeps its present value; a refused list item is zero, so that later
// items keep their index. Lists and maps are replaced. If text stops being JSON, or has more than
// MaxValues values, the rest is not read.
//
// Types with UnmarshalJSON decode themselves, and their Want method says which values they accept.
func Decode(text []byte, into any, how Options) Faults {
	d := &decoder{
		// Duplicate names are faults with a field of their own, not syntax errors.
		in:  jsontext.NewDecoder(bytes.NewBuffer(text), jsontext.AllowDuplicateNames(true)),
		how: how, root: reflect.ValueOf(into).Elem(), given: map[string]bool{},
	}
	err := d.value(d.root, "")
	if err == nil {
		d.at = ""
		end := d.in.InputOffset()
		switch _, err = d.in.ReadToken(); err {
		case nil:
			d.faults = append(d.faults, Fault{position(text, end),
				"there is more after the first value", Syntax})
		case io.EOF:
			err = nil
		}
	}
	if err != nil && err != errEnough {
		d.faults = append(d.faults, d.syntax(text, err))
	}
	return d.faults
}

type decoder struct {
	in     *jsontext.Decoder
	how    Options
	root   reflect.Value
	at     string          // the field being read
	given  map[string]bool // fields that were set, if there are former names
	values int             // begun so far, without the whole text
	faults Faults
}

// value reads one value. An error is a syntax error, after which nothing more can be read.
func (d *decoder) value(v reflect.Value, field string) error {
	d.at = field
	kind := d.in.PeekKind()
	if _, ok := v.Addr().Interface().(json.Unmarshaler); ok {
		return d.leaf(v, field)
	}
	switch want := v.Kind(); {
	case want == reflect.Pointer && kind != 'n':
		target := reflect.New(v.Type().Elem())
		before := len(d.faults)
		if err := d.value(target.Elem(), field); err != nil || len(d.faults) > before {
			return err
		}
		v.Set(target)
		return nil
	case want == reflect.Struct && kind == '{':
		return d.object(v, field)
	case want == reflect.Map && kind == '{':
		return d.dictionary(v, field)
	case want == reflect.Slice && kind == '[':
		return d.list(v, field)
	}
	return d.leaf(v, field)
}

// leaf reads a value without fields, or one of the wrong kind.
func (d *decoder) leaf(v reflect.Value, field string) error {
	raw, err := d.in.ReadValue()
	if err != nil {
		return err
	}
	if own, ok := v.Addr().Interface().(json.Unmarshaler); ok {
		switch err := own.UnmarshalJSON(raw); {
		case errors.Is(err, ErrKind):
			return d.mistyped(v.Type(), field, raw)
		case err != nil && d.how.Secret:
			return d.refuse(Refused, field, "%s", err)
		case err != nil:
			return d.refuse(Refused, field, "%s %s", brief(raw), err)
		}
		return nil
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Struct, reflect.Map, reflect.Slice:
		return d.mistyped(v.Type(), field, raw)
	}
	if raw.Kind() == 'n' {
		return d.mistyped(v.Type(), field, raw)
	}
	switch err := json.Unmarshal(raw, v.Addr().Interface()); {
	case errors.Is(err, strconv.ErrRange):
		return d.refuse(Refused, field, "%s is out of range", brief(raw))
	case err != nil:
		return d.mistyped(v.Type(), field, raw)
	}
	return nil
}

func (d *decoder) list(v reflect.Value, field string) error {
	if _, err := d.in.ReadToken(); err != nil {
		return err
	}
	items := reflect.MakeSlice(v.Type(), 0, 0)
	for i := 0; d.in.PeekKind() != ']'; i++ {
		if err := d.count(field); err != nil {
			return err
		}
		item := reflect.New(v.Type().Elem()).Elem()
		if err := d.value(item, fmt.Sprintf("%s[%d]", field, i)); err != nil {
			return err
		}
		items = reflect.Append(items, item)
	}
	v.Set(items)
	_, err := d.in.ReadToken()
	return err
}

// object reads a struct.
func (d *decoder) object(v reflect.Value, field string) error {
	members := membersOf(v.Type())
	return d.members(field, func(name string, again bool) (reflect.Value, error) {
		full := Path(field, name)
		if index, ok := members.index[name]; ok {
			if d.isTwice(full, again) {
				return reflect.Value{}, d.refuse(Unknown, full,
					"it is also given by its former name")
			}
			return v.FieldByIndex(index), nil
		}
		if now := d.how.Former[full]; now != "" {
			if d.isTwice(now, again) {
				return reflect.Value{}, d.refuse(Unknown, full,
					"it is now called %s, which is also given", now)
			}
			return d.root.FieldByIndex(indexOf(d.root.Type(), now)), nil
		}
		if again {
			return reflect.Value{}, nil
		}
		hint := Nearest(name, members.names)
		if now := d.how.Moved[full]; now != "" {
			hint = ": it is " + now + " now"
		}
		return reflect.Value{}, d.refuse(Unknown, full, "unknown key%s", hint)
	})
}

// isTwice records that a field is given under one of its names, and reports whether it was already
// given under the other.
func (d *decoder) isTwice(field string, again bool) bool {
	if len(d.how.Former) == 0 {
		return false
	}
	before := d.given[field]
	d.given[field] = true
	return before && !again
}

// indexOf finds a field of nested structs by its path.
func indexOf(t reflect.Type, path string) (index []int) {
	for name := range strings.SplitSeq(path, ".") {
		inner := membersOf(t).index[name]
		index, t = append(index, inner...), t.FieldByIndex(inner).Type
	}
	return index
}

// dictionary reads a map, whose keys the writer chooses.
func (d *decoder) dictionary(v reflect.Value, field string) error {
	all := map[string]reflect.Value{}
	err := d.members(field, func(name string, again bool) (reflect.Value, error) {
		if !again {
			all[name] = reflect.New(v.Type().Elem()).Elem()
		}
		return all[name], nil
	})
	if err != nil {
		return err
	}
	v.Set(reflect.MakeMapWithSize(v.Type(), len(all)))
	for name, value := range all {
		v.SetMapIndex(reflect.ValueOf(name).Convert(v.Type().Key()), value)
	}
	return nil
}

// members reads an object's members into the values that target returns for their names; it skips
// those with an invalid one.
func (d *decoder) members(field string,
	target func(name string, again bool) (reflect.Value, error)) error {
	if _, err := d.in.ReadToken(); err != nil {
		return err
	}
	seen := map[string]bool{}
	for d.in.PeekKind() != '}' {
		if err := d.count(field); err != nil {
			return err
		}
		token, err := d.in.ReadToken()
		if err != nil {
			return err
		}
		name := token.String()
		v, err := target(name, seen[name])
		switch {
		case err != nil:
		case !v.IsValid():
			err = d.in.SkipValue()
		case seen[name]:
			err = d.duplicate(Path(field, name))
		default:
			err = d.value(v, Path(field, name))
		}
		if err != nil {
			return err
		}
		seen[name] = true
	}
	_, err := d.in.ReadToken()
	return err
}

func (d *decoder) duplicate(field string) error {
	raw, err := d.in.ReadValue()
	switch {
	case err != nil:
		return err
	case d.how.Secret:
		return d.refuse(Duplicate, field, "is given more than once")
	}
	return d.refuse(Duplicate, field, "is given more than once, here as %s", brief(raw))
}

// members are a struct's fields by their keys.
type members struct {
	index map[string][]int
	names []string
}

var known sync.Map // members by reflect.Type

func membersOf(t reflect.Type) members {
	if found, ok := known.Load(t); ok {
		return found.(members)
	}
	m := members{index: map[string][]int{}}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name != "" && name != "-" && f.IsExported() {
			m.index[name], m.names = f.Index, append(m.names, name)
		}
	}
	known.Store(t, m)
	return m
}
