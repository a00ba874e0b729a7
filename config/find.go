package config

import (
	"errors"
	"io/fs"
	"os"

	"github.com/caarlos0/env/v10"
)

// DefaultFile is read when it exists and nothing else is named.
const DefaultFile = "/etc/daycare-sandbox/settings.json"

// Find loads the settings file that is named, or else that of SANDBOXD_SETTINGS, or else DefaultFile if it
// exists, with the variables of environ over it. file is the one that it is; empty for none.
func Find(named string, environ []string) (c Config, file string, err error) {
	variables := env.ToMap(environ)
	file = named
	if file == "" {
		file = variables["SANDBOXD_SETTINGS"]
	}
	delete(variables, "SANDBOXD_SETTINGS")
	if file == "" {
		if _, err := os.Stat(DefaultFile); !errors.Is(err, fs.ErrNotExist) {
			file = DefaultFile
		}
	}
	c, err = Load(file, variables)
	return c, file, err
}
