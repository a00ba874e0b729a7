package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/caarlos0/env/v10"
	"github.com/tidwall/jsonc"

	"github.com/daycare-run/sandbox/internal/strictjson"
)

// DefaultFile is read if it exists and no other file is named.
const DefaultFile = "/etc/daycare-sandbox/settings.json"

// Find loads the settings file named, or else the file in SANDBOXD_SETTINGS, or else DefaultFile if
// it exists, with the variables of environ over it. If these are those of another process, whose
// root or working directory may be another, at returns where a path of that process is found from
// here; it may be nil. file is the path that was read; empty for none.
func Find(named string, environ []string,
	at func(path string) string) (c Config, file string, err error) {
	if at == nil {
		at = func(path string) string { return path }
	}
	variables := env.ToMap(environ)
	if file = cmp.Or(named, variables["SANDBOXD_SETTINGS"]); file != "" {
		file = at(file)
	} else if _, err := os.Stat(at(DefaultFile)); !errors.Is(err, fs.ErrNotExist) {
		file = at(DefaultFile)
	}
	delete(variables, "SANDBOXD_SETTINGS")
	c, err = Load(file, variables)
	return c, file, err
}

// maxFile is the largest size of a settings.json in bytes.
const maxFile = 1 << 20

// Load returns the Config of the file at path with the variables of environ over it. An empty path
// means no file; a named file must exist. environ is the whole environment, as env.ToMap makes it
// from os.Environ: variables that do not begin with SANDBOXD_ are ignored, and an unknown variable
// that does is a fault.
//
// A variable that is set is taken literally, even when it is empty: that is an empty string or an
// empty list. Lists are separated by commas; egress.presets is written as in the file.
//
// The error names every fault of file and environment with its key and value. The value of an
// unknown key or variable is left out, because it may be a misplaced secret.
func Load(path string, environ map[string]string) (Config, error) {
	if path == "" {
		c, wrong := load(nil, environ)
		if len(wrong) > 0 {
			return Config{}, fmt.Errorf("cannot use the settings of the environment: %w", wrong)
		}
		return c, nil
	}
	data, err := readFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("cannot read the settings: %w", err)
	}
	c, wrong := load(data, environ)
	if len(wrong) > 0 {
		return Config{}, fmt.Errorf("cannot use the settings of %s: %w", path, wrong)
	}
	return c, nil
}

// load is Load without the file system. nil data means that there is no file; the data of an empty
// file is not nil.
func load(data []byte, environ map[string]string) (Config, strictjson.Faults) {
	c := Default()
	var wrong strictjson.Faults
	if data != nil {
		wrong = strictjson.Decode(jsonc.ToJSON(data), &c,
			strictjson.Options{Root: "the whole file", Moved: moved, Former: formerKeys()})
	}
	refused := map[string]bool{}
	for _, f := range wrong {
		refused[f.Field] = refused[f.Field] || f.Kind == strictjson.Refused
	}
	variables, unset := override(&c, environ)
	wrong = append(wrong, unset...)

	for _, f := range c.check().Faults {
		if variable := setBy(variables, f.Field); variable != "" {
			f.Field = fmt.Sprintf("%s (%s)", f.Field, variable)
		} else if refused[f.Field] {
			continue // a value that was not taken gets no second fault
		}
		wrong = append(wrong, f)
	}
	if len(wrong) > 0 {
		return Config{}, wrong
	}
	canonicalize(c.Docker.CapAdd)
	canonicalize(c.Docker.CapDrop)
	return c, nil
}

// setBy returns the variable that set the key, or the list or object that contains it; "" for none.
func setBy(variables map[string]string, key string) string {
	for set, variable := range variables {
		if rest, ok := strings.CutPrefix(key, set); ok &&
			(rest == "" || rest[0] == '[' || rest[0] == '.') {
			return variable
		}
	}
	return ""
}

// readFile returns a file's contents, which are never nil.
func readFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close() // nothing was written
	data, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	switch {
	case err != nil:
		return nil, err
	case len(data) > maxFile:
		return nil, fmt.Errorf("%s has more than %d bytes", path, maxFile)
	}
	return data, nil
}
