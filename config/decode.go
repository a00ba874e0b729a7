package config

import (
	"bytes"
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// decoder sets a Config from JSON. It goes on after a fault: a field that cannot be set keeps its value.
type decoder struct {
	in     *jsontext.Decoder
	faults faults
	// refused has the keys whose values were not taken.
	refused map[string]bool
}

// decode sets in c what data says, which is JSON and may have comments. It returns all that is wrong with
// data, and the keys whose values it did not take. Where data is no longer JSON, the rest goes unread.
func decode(c *Config, data []byte) (faults, map[string]bool) {
	data = withoutComments(data)
	d := &decoder{
		// Names that come twice are faults with a key of their own, not errors of syntax.
		in:      jsontext.NewDecoder(bytes.NewReader(data), jsontext.AllowDuplicateNames(true)),
		refused: make(map[string]bool),
	}
	err := d.object(root(c))
	end := d.in.InputOffset()
	if err == nil {
		switch _, err = d.in.ReadToken(); err {
		case nil:
			d.faults.add(position(data, end), "there is more after the settings' object")
		case io.EOF:
			err = nil
		}
	}
	if err != nil {
		place, says := syntax(data, err)
		d.faults.add(place, "%s", says)
	}
	return d.faults, d.refused
}

// object reads one object. Its error is one of syntax, after which nothing can be read.
func (d *decoder) object(section field) error {
	if kind := d.in.PeekKind(); kind != '{' {
		raw, err := d.in.ReadValue()
		if err != nil {
			return err
		}
		d.mistyped(cmp.Or(section.key, "the whole file"), section.wants(), raw)
		return nil
	}
	if _, err := d.in.ReadToken(); err != nil {
		return err
	}
	known := make(map[string]field)
	var names []string
	for _, f := range fields(section) {
		known[f.name], names = f, append(names, f.name)
	}
	seen := make(map[string]bool)
	for d.in.PeekKind() != '}' {
		token, err := d.in.ReadToken()
		if err != nil {
			return err
		}
		name := token.String()
		f, ok := known[name]
		if !ok && !seen[name] {
			key := keyPath(section.key, printable(name))
			hint := nearest(name, names)
			if now := moved[key]; now != "" {
				hint = ": it is " + now + " now"
			}
			d.faults.add(key, "unknown key%s", hint)
		}
		if err := d.member(f, ok, seen[name]); err != nil {
			return err
		}
		seen[name] = true
	}
	_, err := d.in.ReadToken()
	return err
}

// member reads the value of a key.
func (d *decoder) member(f field, known, again bool) error {
	if known && !again && f.section {
		return d.object(f)
	}
	raw, err := d.in.ReadValue()
	switch {
	case err != nil || !known:
		return err
	case again:
		d.faults.add(f.key, "is given more than once, here as %s", brief(raw))
	default:
		d.set(f, raw)
	}
	return nil
}

// set gives a field the value of raw, or finds the fault with it.
func (d *decoder) set(f field, raw jsontext.Value) {
	if text := f.text(); text != nil {
		d.setText(f, text, raw)
		return
	}
	var err error
	kind := raw.Kind()
	switch want := f.value.Kind(); {
	case want == reflect.String && kind == '"':
		f.value.SetString(unquote(raw))
	case want == reflect.Bool && (kind == 't' || kind == 'f'):
		f.value.SetBool(kind == 't')
	case want == reflect.Slice && kind == '[':
		d.setList(f, raw)
	case want == reflect.Map && kind == '{':
		d.setMap(f, raw)
	case (want == reflect.Int || want == reflect.Int64) && kind == '0':
		var n int64
		if n, err = strconv.ParseInt(raw.String(), 10, f.value.Type().Bits()); err == nil {
			f.value.SetInt(n)
		}
	case want == reflect.Float64 && kind == '0':
		var n float64
		if n, err = strconv.ParseFloat(raw.String(), 64); err == nil {
			f.value.SetFloat(n)
		}
	default:
		err = strconv.ErrSyntax
	}
	switch {
	case errors.Is(err, strconv.ErrRange):
		d.refuse(f.key, "%s is out of range", brief(raw))
	case err != nil:
		d.mistyped(f.key, f.wants(), raw)
	}
}

// setText sets what is written as a string. A size may also be a number.
func (d *decoder) setText(f field, text encoding.TextUnmarshaler, raw jsontext.Value) {
	var value string
	switch _, size := text.(*Size); {
	case raw.Kind() == '"':
		value = unquote(raw)
	case raw.Kind() == '0' && size:
		value = raw.String()
	default:
		d.mistyped(f.key, f.wants(), raw)
		return
	}
	if err := text.UnmarshalText([]byte(value)); err != nil {
		d.refuse(f.key, "%s %s", brief(raw), err)
	}
}

// setList sets a list. A mistyped item is kept as "" or 0, so that the items after it keep their index
// when their values are judged.
func (d *decoder) setList(f field, raw jsontext.Value) {
	var items []jsontext.Value
	if err := json.Unmarshal(raw, &items, jsontext.AllowDuplicateNames(true)); err != nil {
		d.refuse(f.key, "%s cannot be read: %s", brief(raw), err)
		return
	}
	list := reflect.MakeSlice(f.value.Type(), len(items), len(items))
	for i, item := range items {
		d.set(field{key: fmt.Sprintf("%s[%d]", f.key, i), value: list.Index(i)}, item)
	}
	f.value.Set(list)
}

// setMap sets an object whose names are the operator's own. It needs no errors of syntax, because the
// decoder that made raw has checked it.
func (d *decoder) setMap(f field, raw jsontext.Value) {
	in := jsontext.NewDecoder(bytes.NewReader(raw), jsontext.AllowDuplicateNames(true))
	_, _ = in.ReadToken()
	all := reflect.MakeMap(f.value.Type())
	for in.PeekKind() == '"' {
		token, _ := in.ReadToken()
		name := token.String()
		value, _ := in.ReadValue()
		member := field{key: keyPath(f.key, printable(name)), value: reflect.New(all.Type().Elem()).Elem()}
		if all.MapIndex(reflect.ValueOf(name)).IsValid() {
			d.faults.add(member.key, "is given more than once, here as %s", brief(value))
			continue
		}
		d.set(member, value)
		all.SetMapIndex(reflect.ValueOf(name), member.value)
	}
	f.value.Set(all)
}

func (d *decoder) mistyped(key, want string, raw jsontext.Value) {
	d.refuse(key, "want %s, got %s", want, brief(raw))
}

func (d *decoder) refuse(key, format string, args ...any) {
	d.faults.add(key, format, args...)
	d.refused[key] = true
}
