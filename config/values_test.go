package config

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/internal/strictjson"
)

// visible are the settings, and the parts of settings, that have text which others may see: nobody has a reason to put a secret
// there. Whatever else has text is tagged shown:"no".
var visible = strings.Fields(`
	docker.image docker.tag docker.socketPath docker.runtime docker.eventsRuntime docker.capAdd docker.capDrop
	docker.allowLocalNetworkingForUsers docker.isolatedDnsServers docker.localDnsServers
	egress.name egress.subnets egress.presets egress.alsoPublic egress.caFile egress.ownAddresses
	usersDir allowedMountRoots eventsSocket dataDir listen agentPath log.level log.format
	tcp.listen tcp.tokensFile tcp.certFile tcp.keyFile tcp.clientCaFile tcp.allowedHosts tcp.allowedOrigins
	e2b.listen e2b.domain e2b.defaultNetwork e2b.templates.image
	cluster.name cluster.etcd cluster.listen cluster.caFile cluster.certFile cluster.keyFile cluster.sealingKeyFile cluster.watchdog cluster.homes
`)

// Whoever adds a setting that has text decides whether it is shown.
func TestEverySettingWithTextIsShownOnPurpose(t *testing.T) {
	var walk func(of reflect.Type, key string, hidden bool)
	var shows []string
	walk = func(of reflect.Type, key string, hidden bool) {
		switch of.Kind() {
		case reflect.Slice, reflect.Map:
			walk(of.Elem(), key, hidden)
		case reflect.Struct:
			for i := range of.NumField() {
				f := of.Field(i)
				walk(f.Type, strictjson.Path(key, f.Tag.Get("json")), hidden || isHidden(f.Tag))
			}
		case reflect.String:
			if !hidden {
				shows = append(shows, strings.Trim(key, "."))
			}
		}
	}
	walk(reflect.TypeFor[Config](), "", false)
	for _, key := range shows {
		if !slices.Contains(visible, key) {
			t.Errorf("%s would be shown to others: tag it shown:\"no\", or name it in visible", key)
		}
	}
	for _, key := range visible {
		if !slices.Contains(shows, key) {
			t.Errorf("%s is called visible, but is none", key)
		}
	}
}

func TestSecretsAreNotShown(t *testing.T) {
	c := Default()
	c.Cluster.FenceCommand = []string{"/usr/sbin/fence", "--password", "TOPSECRET"}
	c.Cluster.RemountCommand = []string{"/bin/mount", "-o", "password=TOPSECRET"}
	c.E2B.Templates = map[string]E2BTemplate{"py": {
		Image: "python:3", CPUs: 2, Env: map[string]string{"KEY": "TOPSECRET", "EMPTY": ""}, Start: "serve --key TOPSECRET", Ready: "curl TOPSECRET",
	}}
	c.Idle.RemoveAfter, c.Limits.Memory = Duration(90*time.Minute), 16*gi
	values := map[string]string{}
	for _, v := range c.Values() {
		values[v.Key] = v.Text
		if strings.Contains(v.Text, "TOPSECRET") {
			t.Errorf("%s: %s", v.Key, v.Text)
		}
	}
	for key, want := range map[string]string{
		"cluster.fenceCommand":   `["/usr/sbin/fence","(not shown)","(not shown)"]`,
		"cluster.remountCommand": `["/bin/mount","(not shown)","(not shown)"]`,
		"e2b.templates": `{"py":{"image":"python:3","cpus":2,"memory":0,"env":{"EMPTY":"","KEY":"(not shown)"},` +
			`"start":"(not shown)","ready":"(not shown)","readyTimeoutMs":0}}`,
		"docker.capAdd":    `[]`,
		"idle.removeAfter": `"1h30m"`, "limits.memory": `"16Gi"`,
	} {
		if values[key] != want {
			t.Errorf("%s is shown as %s and not as %s", key, values[key], want)
		}
	}
	if c.E2B.Templates["py"].Env["KEY"] != "TOPSECRET" || c.Cluster.FenceCommand[2] != "TOPSECRET" {
		t.Error("the settings themselves were changed")
	}
}

// An address with a password in it would be shown.
func TestAddressesOfEtcdHaveNoPassword(t *testing.T) {
	var f faults
	Cluster{Name: "a", Etcd: []string{"https://root:pw@10.0.0.1:2379"}, Listen: "10.0.0.1:7483", Homes: "shared"}.check(&f)
	if len(f.Faults) != 1 || f.Faults[0].Field != "cluster.etcd" {
		t.Errorf("%v", f.Faults)
	}
}
