package config

import (
	"bytes"
	"errors"
	"reflect"

	"github.com/go-json-experiment/json"
)

// SetCluster returns the text of a settings file with cluster, which has nothing set there yet. All else in it stays as it is.
// An empty text is that of no file.
func SetCluster(text []byte, c Cluster) ([]byte, error) {
	value, err := json.Marshal(c, json.OmitZeroStructFields(true))
	if err != nil {
		return nil, err
	}
	if len(bytes.TrimSpace(text)) == 0 {
		text = []byte("{}\n")
	}
	before, wrong := load(text, nil)
	if len(wrong) > 0 {
		return nil, wrong
	}
	if !reflect.DeepEqual(before.Cluster, Default().Cluster) {
		return nil, errors.New("cluster is set there already: take it out first")
	}
	object, _, err := findObject(text, nil)
	if err != nil {
		return nil, err
	}
	if m := object.member("cluster"); m != nil { // it says the defaults
		text = object.remove(text, *m)
		if object, _, err = findObject(text, nil); err != nil {
			return nil, err
		}
	}
	return checked(object.insert(text, "cluster", value, 2))
}
