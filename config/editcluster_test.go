package config

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

func TestSettingsOfAHostThatJoins(t *testing.T) {
	deployed, err := os.ReadFile("../deploy/settings.json")
	if err != nil {
		t.Fatal(err)
	}
	c := Cluster{
		Name: "host-1", Etcd: []string{"https://10.0.0.1:2379", "https://10.0.0.2:2379"}, Listen: "10.0.0.1:7483",
		CAFile: "/c/ca.crt", CertFile: "/c/a.crt", KeyFile: "/c/a.key", SealingKeyFile: "/c/sealing.key",
	}
	want := c
	want.RemountCommand, want.FenceCommand, want.Homes = []string{}, []string{}, "shared"
	for _, text := range []string{"", "{}", "{ // why\n  \"usersDir\": \"/u\" // kept\n}\n", string(deployed)} {
		edited, err := SetCluster([]byte(text), c)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		after, wrong := load(edited, nil)
		if len(wrong) > 0 || !reflect.DeepEqual(after.Cluster, want) {
			t.Errorf("%s became %s: %+v, %v", text, edited, after.Cluster, wrong)
		}
		if strings.Contains(text, "// why") && !strings.Contains(string(edited), "// kept") {
			t.Errorf("%s became %s", text, edited)
		}
		if _, err := SetCluster(edited, c); err == nil || !strings.Contains(err.Error(), "already") {
			t.Errorf("a second time: %v", err)
		}
	}
	c.Name = "Host 1"
	if _, err := SetCluster(nil, c); err == nil || !strings.Contains(err.Error(), "cluster.name") {
		t.Errorf("%v", err)
	}
}
