package config

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// maxFile is what a settings.json may have in bytes.
const maxFile = 1 << 20

// Load returns the Config of the file at path with the variables of environ over it. An empty path
// means no file; a file that is named must exist. environ is the whole environment, as env.ToMap
// makes it of os.Environ: variables that do not begin with SANDBOXD_ are passed over, and one that
// does but sets nothing is a fault.
//
// A variable that is set is taken literally, even when it is empty: that is an empty string or an
// empty list. Lists are separated by commas; egress.presets is written as in the file.
//
// The error names every fault of file and environment with its key and value. The value of an unknown
// key or variable is left out, because it may be a secret that went astray.
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

// load is Load without the file system. Without data there is no file; an empty file is no nil data.
func load(data []byte, environ map[string]string) (Config, faults) {
	c := Default()
	var wrong faults
	var refused map[string]bool
	if data != nil {
		wrong, refused = decode(&c, data)
	}
	variables, unset := override(&c, environ)
	wrong = append(wrong, unset...)

	for _, f := range c.check() {
		if variable := setBy(variables, f.key); variable != "" {
			f.key = fmt.Sprintf("%s (%s)", f.key, variable)
		} else if refused[f.key] {
			continue // what was not taken is not judged as well
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

// setBy returns the variable that set the key, or the list or object that it is in, or "".
func setBy(variables map[string]string, key string) string {
	for set, variable := range variables {
		if rest, ok := strings.CutPrefix(key, set); ok && (rest == "" || rest[0] == '[' || rest[0] == '.') {
			return variable
		}
	}
	return ""
}

// readFile returns what is in a file, never nil.
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
