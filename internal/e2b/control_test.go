package e2b

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/strictjson"
	"github.com/daycare-run/sandbox/internal/workload/persistent"
)

func TestKeys(t *testing.T) {
	l := newLab(t)
	for key, want := range map[string]int{
		annesKey: http.StatusOK, keyPrefix + annesKey: http.StatusOK, bensKey: http.StatusOK,
		"": http.StatusUnauthorized, "e2b_": http.StatusUnauthorized, keyPrefix + keyPrefix + annesKey: http.StatusUnauthorized, annesKey + "x": http.StatusUnauthorized,
	} {
		if status, text, _ := l.call(key, "GET", "/v2/sandboxes", ""); status != want || status != http.StatusOK && !strings.HasPrefix(text, `{"code":401,"message":"`) {
			t.Errorf("%q: %d %s", key, status, text)
		}
	}
}

func TestCreateMakesWhatIsAskedFor(t *testing.T) {
	l := newLab(t)
	b := l.create(`{"templateID":"base","timeout":300,"metadata":{"a":"1"},"envVars":{"X":"y"},"secure":true,"autoPause":true,"autoResume":{"enabled":true}}`)
	made := b.persistent().Info()
	if made.OnDeadline != persistent.Pause || !made.AutoResume || !slices.Equal(made.Network.Allow, []string{"*"}) || time.Until(made.Deadline) < 290*time.Second {
		t.Errorf("%+v", made)
	}
	if got := run(b, command("echo $X")); got.stdout != "y\n" {
		t.Errorf("the environment: %+v", got)
	}
	status, text, _ := l.call(annesKey, "GET", "/sandboxes/"+b.ID, "")
	var told map[string]any
	if err := json.Unmarshal([]byte(text), &told); err != nil || status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	for name, want := range map[string]any{
		"sandboxID": b.ID, "templateID": "base", "state": "running", "cpuCount": 2.0, "memoryMB": 1024.0, "envdVersion": envdVersion,
		"allowInternetAccess": true, "envdAccessToken": b.Token, "domain": nil,
	} {
		if told[name] != want {
			t.Errorf("%s: %v, not %v", name, told[name], want)
		}
	}
	if life := told["lifecycle"].(map[string]any); life["onTimeout"] != "pause" || life["autoResume"] != true {
		t.Errorf("%v", life)
	}
}

func TestUnenforceableSettingsAreRefused(t *testing.T) {
	l := newLab(t)
	for body, want := range map[string]string{
		`{"mcp":{}}`: "mcp", `{"iam":{"x":1}}`: "iam", `{"volumeMounts":[{"name":"a","path":"/b"}]}`: "volumeMounts",
		`{"autoPause":true,"autoPauseMemory":false}`:                                   "autoPauseMemory",
		`{"network":{"egressProxy":{"address":"x"}}}`:                                  "network.egressProxy",
		`{"network":{"rules":{"a.example.org":[]}}}`:                                   "network.rules",
		`{"network":{"maskRequestHost":"x"}}`:                                          "network.maskRequestHost",
		`{"network":{"httpsPorts":[8443]}}`:                                            "network.httpsPorts",
		`{"network":{"unheardOf":1}}`:                                                  "network.unheardOf",
		`{"network":{"allowOut":["a.example.org","2001:db8::1"]}}`:                     "network.allowOut[1]",
		`{"network":{"allowOut":["192.0.2.1/24"]}}`:                                    "192.0.2.0/24",
		`{"network":{"denyOut":["192.0.2.0/24"]}}`:                                     "network.denyOut",
		`{"network":{"allowOut":["0.0.0.0/0"],"denyOut":["192.0.2.0/24"]}}`:            "network.denyOut",
		`{"network":{"allowOut":["192.0.2.1"],"denyOut":["a.example.org"]}}`:           "network.denyOut",
		`{"network":{"denyOut":["a.example.org"]}}`:                                    "network.denyOut",
		`{"network":{"allowOut":["192.0.2.0/24"],"denyOut":["::ffff:192.0.2.7"]}}`:     "network.denyOut[0]",
		`{"network":{"allowOut":["192.0.2.0/24"],"denyOut":["::ffff:192.0.2.0/120"]}}`: "network.denyOut[0]",
		`{"network":{"allowOut":["::/0"]}}`:                                            "network.allowOut[0]",
		`{"network":{"allowOut":"a.example.org"}}`:                                     "network.allowOut",
		`{"allow_internet_access":false,"network":{"allowOut":["a.example.org"]}}`:     "allowOut",
		`{"unheardOf":1}`: "unheardOf", `{"timeout":"x"}`: "timeout", `{"timeout":-1}`: "timeout", `{"timeout":99999999}`: "timeout",
		`{`: "JSON", `[]`: "wrong kind", `{"metadata":{"a":1}}`: "metadata",
	} {
		status, text, _ := l.call(annesKey, "POST", "/v2/sandboxes", body)
		if status != http.StatusBadRequest || !strings.Contains(text, `"code":400`) || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s", body, status, text)
		}
	}
	if status, text, _ := l.call(annesKey, "POST", "/v2/sandboxes", `{"templateID":"unheard-of"}`); status != http.StatusNotFound || strings.Contains(text, "node") {
		t.Errorf("%d %s", status, text)
	}
	if n := len(l.engine.made); n != 0 {
		t.Errorf("%d sandboxes were made", n)
	}
}

// A body of few bytes a value is not read into many times its size, and what is read is counted.
func TestValuesOfABodyAreBounded(t *testing.T) {
	l := newLab(t, func(c *Config) { c.MaxRequest = 4 << 20 })
	many := func(value string) string { return strings.Repeat(value+",", strictjson.MaxValues) + value }
	for in, body := range map[string]string{
		"volumeMounts": `{"volumeMounts":[` + many(`{}`) + `]}`, "network.allowOut": `{"network":{"allowOut":[` + many(`""`) + `]}}`,
		"metadata": `{"metadata":{` + many(`"":""`) + `}}`, "envVars": `{"envVars":{` + many(`"":""`) + `}}`,
	} {
		status, text, _ := l.call(annesKey, "POST", "/v2/sandboxes", body)
		if want := in + ": the document has more than 262144 values"; status != http.StatusBadRequest || !strings.Contains(text, want) {
			t.Errorf("%d %.200s, want %s", status, text, want)
		}
	}
	const body = `{"metadata":{"a":"1","b":"2"}}`
	for _, missing := range []int{0, 1} {
		req := httptest.NewRequest(http.MethodPost, "/v2/sandboxes", strings.NewReader(body))
		req.Body = &kept{ReadCloser: req.Body, of: newShare(1<<20, len(body)+3*strictjson.ValueBytes-missing), owner: "anne", id: "x"}
		if err := read(req, &createBody{}); cerrdefs.IsResourceExhausted(err) != (missing > 0) {
			t.Errorf("with %d bytes too few: %v", missing, err)
		}
	}
}

func TestNetworks(t *testing.T) {
	all := persistent.Network{Allow: []string{"*"}}
	for _, tt := range []struct {
		body    string
		blocked bool
		want    persistent.Network
	}{
		{`{}`, false, all},
		{`{}`, true, persistent.Network{None: true}},
		{`{"allow_internet_access":true}`, true, all},
		{`{"allow_internet_access":false}`, false, persistent.Network{None: true}},
		{`{"network":{"denyOut":["0.0.0.0/0"]}}`, false, persistent.Network{}},
		{`{"network":{"allowOut":["*.example.org","a.example.com"],"denyOut":["0.0.0.0/0","b.example.org"]}}`, false, persistent.Network{Allow: []string{"*.example.org", "a.example.com"}, Deny: []string{"b.example.org"}}},
		{`{"network":{"allowOut":["a.example.org"]}}`, true, persistent.Network{Allow: []string{"a.example.org"}}},
		{`{"network":{"allowOut":["0.0.0.0/0"]}}`, true, all},
		{`{"network":{"allowOut":[]}}`, false, persistent.Network{}},
		{`{"network":{"allowOut":["192.0.2.0/24","a.example.org"],"denyOut":["0.0.0.0/0","192.0.2.7","::/0"]}}`, false, persistent.Network{
			Allow: []string{"a.example.org"}, Addresses: []string{"192.0.2.0/24"}, DenyAddresses: []string{"192.0.2.7"},
		}},
		{`{"network":{"allowOut":["192.0.2.7"]}}`, true, persistent.Network{Addresses: []string{"192.0.2.7"}}},
		{`{"network":{"denyOut":["0.0.0.0/0","192.0.2.0/24","a.example.org"]}}`, false, persistent.Network{}},
		{`{"network":{"denyOut":[],"rules":{},"allowPublicTraffic":false}}`, false, all},
		{`{"network":{"denyOut":["::/0"]}}`, false, all}, // sandboxes have no IPv6
		{`{"network":null,"allow_internet_access":null}`, true, persistent.Network{None: true}},
	} {
		l := newLab(t, func(c *Config) { c.Blocked = tt.blocked })
		if got := l.create(tt.body).persistent().Info().Network; !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: %+v", tt.body, got)
		}
	}
}

func TestNetworkOfOneThatRuns(t *testing.T) {
	l := newLab(t)
	b := l.create(`{}`)
	for body, want := range map[string][]string{
		`{"allowOut":["a.example.org"],"denyOut":["0.0.0.0/0"]}`: {"a.example.org"},
		`{"allow_internet_access":false}`:                        nil, `{}`: {"*"},
	} {
		status, text, _ := l.call(annesKey, "PUT", "/sandboxes/"+b.ID+"/network", body)
		if got := b.persistent().Info().Network; status != http.StatusNoContent || got.None || !slices.Equal(got.Allow, want) {
			t.Errorf("%s: %d %s %+v", body, status, text, got)
		}
	}
}

func TestLives(t *testing.T) {
	l := newLab(t)
	b := l.create(`{"timeout":60}`)
	path := "/sandboxes/" + b.ID
	made := b.persistent()                      // also when it is gone
	set, begun := time.Duration(0), time.Time{} // the last call that has set the deadline, and from when on it can have done so
	for _, step := range []struct {
		call, body string
		status     int
		deadline   time.Duration
	}{
		{"POST " + path + "/timeout", `{"timeout":600}`, 204, 600 * time.Second},
		{"POST /v2" + path + "/connect", `{"timeout":60}`, 200, 600 * time.Second},
		{"POST " + path + "/pause", ``, 204, 600 * time.Second},
		{"POST " + path + "/pause", `{"memory":true}`, 409, 600 * time.Second},
		{"POST " + path + "/pause", `{"memory":false}`, 400, 600 * time.Second},
		{"POST " + path + "/connect", `{"timeout":900}`, 201, 900 * time.Second},
		{"POST " + path + "/timeout", `{"timeout":30}`, 204, 30 * time.Second},
		{"DELETE " + path, ``, 204, 30 * time.Second},
		{"DELETE " + path, ``, 404, 30 * time.Second},
	} {
		method, path, _ := strings.Cut(step.call, " ")
		if step.deadline != set {
			set, begun = step.deadline, time.Now()
		}
		status, text, _ := l.call(annesKey, method, path, step.body)
		left := time.Until(made.Info().Deadline)
		if status != step.status || left > set || left < set-time.Since(begun)-time.Second {
			t.Errorf("%s %s: %d %s, %s left", step.call, step.body, status, text, left)
		}
	}
	// Who has its token is told that it has ended.
	if status, text, _ := l.send("GET", "/health", "", b.header()); status != http.StatusBadGateway || !strings.Contains(text, `"sandboxId":"`+b.ID+`","code":502`) {
		t.Errorf("%d %s", status, text)
	}
}

// TestLivesThatNobodyNames is for calls that name no timeout: by the newer routes a sandbox then lives
// longer. What is to be kept in memory may be spelt out.
func TestLivesThatNobodyNames(t *testing.T) {
	l := newLab(t)
	for path, want := range map[string]time.Duration{
		"/sandboxes": 15 * time.Second, "/v2/sandboxes": 300 * time.Second,
	} {
		begun := time.Now()
		_, text, _ := l.call(annesKey, "POST", path, `{"autoPause":true,"autoPauseMemory":true}`)
		b := &box{lab: l}
		if err := json.Unmarshal([]byte(text), b); err != nil {
			t.Fatal(err)
		}
		left := time.Until(b.persistent().Info().Deadline)
		if left > want || left < want-time.Since(begun)-time.Second {
			t.Errorf("POST %s: %s left", path, left)
		}
	}
	begun := time.Now()
	b := l.create(`{"timeout":20}`)
	for _, step := range []struct {
		path, body string
		want       int
		most       time.Duration
	}{
		{"/sandboxes/" + b.ID + "/resume", ``, 200, 20 * time.Second},
		{"/sandboxes/" + b.ID + "/connect", ``, 200, 20 * time.Second},
		{"/v2/sandboxes/" + b.ID + "/connect", `{"timeout":10,"memory":false}`, 200, 20 * time.Second}, // it runs
		{"/sandboxes/" + b.ID + "/pause", `{"memory":true}`, 204, 20 * time.Second},
		{"/v2/sandboxes/" + b.ID + "/connect", `{"memory":false}`, 400, 20 * time.Second},
		{"/v2/sandboxes/" + b.ID + "/connect", `{"memory":true}`, 201, 300 * time.Second},
	} {
		status, text, _ := l.call(annesKey, "POST", step.path, step.body)
		left := time.Until(b.persistent().Info().Deadline)
		if status != step.want || left > step.most || left < step.most-time.Since(begun)-time.Second {
			t.Errorf("%s: %d %s, %s left", step.path, status, text, left)
		}
	}
}

// TestOneThatHasEnded has a sandbox's container end by itself: for clients it is gone, although its rest is not removed yet.
func TestOneThatHasEnded(t *testing.T) {
	b := newLab(t).create(`{}`)
	b.engine.mu.Lock()
	delete(b.engine.made, b.ID)
	b.engine.mu.Unlock()
	for _, call := range []string{"GET", "POST /connect"} {
		method, path, _ := strings.Cut(call, " ")
		if status, text, _ := b.call(annesKey, method, "/sandboxes/"+b.ID+path, ""); status != http.StatusNotFound {
			t.Errorf("%s: %d %s", call, status, text)
		}
	}
}

func TestHealth(t *testing.T) {
	l := newLab(t)
	for body, want := range map[string]int{`{}`: http.StatusBadGateway, `{"autoPause":true,"autoResume":{"enabled":true}}`: http.StatusOK} {
		b := l.create(body)
		if status, _, _ := l.send("GET", "/health", "", b.header()); status != http.StatusNoContent {
			t.Errorf("%d", status)
		}
		l.call(annesKey, "POST", "/sandboxes/"+b.ID+"/pause", "")
		if status, _, _ := l.send("GET", "/health", "", b.header()); status != http.StatusBadGateway {
			t.Errorf("paused: %d", status)
		}
		if status, text, _ := l.send("GET", "/envs", "", b.header()); status != want {
			t.Errorf("%s: a call to a paused one: %d %s", body, status, text)
		}
	}
}

func TestLists(t *testing.T) {
	l := newLab(t)
	var ids []string
	for _, metadata := range []string{`{"a":"x y","b":"ä&="}`, `{"a":"x y"}`, `{}`} {
		ids = append(ids, l.create(`{"metadata":`+metadata+`}`).ID)
	}
	made := l.create(`{"templateID":"node"}`).persistent()
	l.call(annesKey, "POST", "/sandboxes/"+ids[2]+"/pause", "")
	list := func(query string) (got []string, next string) {
		t.Helper()
		status, text, header := l.call(annesKey, "GET", "/v2/sandboxes?"+query, "")
		var boxes []struct{ SandboxID string }
		if err := json.Unmarshal([]byte(text), &boxes); err != nil || status != http.StatusOK {
			t.Fatalf("%s: %d %s", query, status, text)
		}
		for _, b := range boxes {
			got = append(got, b.SandboxID)
		}
		return got, header.Get("X-Next-Token")
	}
	for query, want := range map[string]int{
		"": 4, "metadata=a%3Dx%252520y": 2, "metadata=b%3D%2525C3%2525A4%252526%25253D": 1, "metadata=a%3Dz": 0,
		"state=paused": 1, "state=running": 3, "state=running%2Cpaused": 4, "state=running&state=paused": 4, "template=node": 1,
		"startedAfter=2100-01-01T00:00:00Z": 0,
	} {
		if got, _ := list(query); len(got) != want {
			t.Errorf("%s: %v, not %d", query, got, want)
		}
	}
	at := made.Info().Started.UTC().Format(time.RFC3339Nano)
	if got, _ := list("template=node&startedAfter=" + at); len(got) != 1 {
		t.Errorf("started at the very moment: %v", got)
	}
	var seen []string
	for next := ""; ; {
		page, then := list("order=asc&limit=1&nextToken=" + next)
		seen = append(seen, page...)
		if next = then; next == "" {
			break
		}
	}
	if len(seen) != 4 || !slices.Equal(seen[:3], ids) {
		t.Errorf("page by page: %v of %v", seen, ids)
	}
	for _, query := range []string{"limit=0", "limit=101", "limit=x", "state=odd", "order=up", "nextToken=%25", "startedAfter=x", "metadata=%25zz"} {
		if status, text, _ := l.call(annesKey, "GET", "/v2/sandboxes?"+query, ""); status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", query, status, text)
		}
	}
}

func TestMissingFeaturesAreNamed(t *testing.T) {
	l := newLab(t)
	b := l.create(`{}`)
	for call, want := range map[string]int{
		"POST /sandboxes/" + b.ID + "/snapshots": 501, "POST /sandboxes/" + b.ID + "/fork": 501, "GET /snapshots": 501, "GET /volumes": 501,
		"DELETE /volumes/x": 501, "POST /v3/templates": 501, "DELETE /templates/x": 501, "GET /templates/x/files": 501, "GET /secrets": 501,
		"POST /secrets": 501, "DELETE /secrets/a%20b%2Fc": 501, "POST /v2/templates/x/builds/y": 501, "GET /nothing": 501,
		"GET /sandboxes/" + b.ID + "/logs": 501, "GET //x": 400,
	} {
		method, path, _ := strings.Cut(call, " ")
		status, text, _ := l.call(annesKey, method, path, "")
		feature, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
		if status != want || want == 501 && len(feature) > 2 && feature != "sandboxes" && !strings.Contains(text, feature) {
			t.Errorf("%s: %d %s", call, status, text)
		}
	}
	status, text := put(b, "with-metadata", "x", func(h http.Header) { h.Set("x-metadata-of", "whom") })
	if there, _ := get(b, "with-metadata"); status != http.StatusNotImplemented || there != http.StatusNotFound {
		t.Errorf("metadata of a file: %d %s, and the file %d", status, text, there)
	}
}

// TestTemplates lists the templates there are, and says whether there is one.
func TestTemplates(t *testing.T) {
	l := newLab(t)
	for _, path := range []string{"/templates", "/v2/templates"} {
		status, text, _ := l.call(annesKey, "GET", path, "")
		var list []templateBody
		if err := json.Unmarshal([]byte(text), &list); err != nil || status != http.StatusOK || len(list) != 2 {
			t.Fatalf("%s: %d %s", path, status, text)
		}
		for i, name := range []string{"base", "node"} {
			if got := list[i]; got.TemplateID != name || !slices.Equal(got.Aliases, []string{name}) || got.BuildStatus != "ready" || got.CPUCount != 2 || got.MemoryMB == 0 {
				t.Errorf("%s: %+v", path, got)
			}
		}
	}
	for name, want := range map[string]int{"base": 200, "node": 200, "node:default": 200, "none": 404, "node:v1": 404, ":default": 404, "team%2Fnode": 404} {
		if status, text, _ := l.call(annesKey, "GET", "/templates/aliases/"+name, ""); status != want {
			t.Errorf("%s: %d %s", name, status, text)
		}
		status, text, _ := l.call(annesKey, "GET", "/templates/"+name+"/tags", "")
		var tags []tagBody
		if status != want || status == http.StatusOK && (json.Unmarshal([]byte(text), &tags) != nil || len(tags) != 1 || tags[0].Tag != "default" || tags[0].BuildID == "" || tags[0].CreatedAt.IsZero()) {
			t.Errorf("tags of %s: %d %s", name, status, text)
		}
	}
	b := l.create(`{"templateID":"node:default"}`)
	if _, text, _ := l.call(annesKey, "GET", "/sandboxes/"+b.ID, ""); !strings.Contains(text, `"templateID":"node"`) {
		t.Error(text)
	}
}

// TestMetricsOfARange asks for those of a time that is over, is to come, or is now.
func TestMetricsOfARange(t *testing.T) {
	b := newLab(t).create(`{}`)
	now := time.Now().Unix()
	for query, want := range map[string]int{
		fmt.Sprintf("start=%d&end=%d", now-60, now+60): 1, fmt.Sprintf("start=%d", now-60): 1, fmt.Sprintf("end=%d", now+60): 1,
		fmt.Sprintf("start=%d&end=%d", now-120, now-60): 0, fmt.Sprintf("start=%d", now+60): 0, fmt.Sprintf("end=%d", now-60): 0,
		"start=x": -1, "end=1.5": -1, "start=2&end=1": -1,
	} {
		status, text, _ := b.call(annesKey, "GET", "/sandboxes/"+b.ID+"/metrics?"+query, "")
		var samples []metricBody
		err := json.Unmarshal([]byte(text), &samples)
		if want < 0 && status != http.StatusBadRequest || want >= 0 && (err != nil || status != http.StatusOK || len(samples) != want) {
			t.Errorf("%s: %d %s", query, status, text)
		}
	}
}

func TestMetrics(t *testing.T) {
	b := newLab(t).create(`{}`)
	status, text, _ := b.call(annesKey, "GET", "/sandboxes/"+b.ID+"/metrics", "")
	var samples []metricBody
	if err := json.Unmarshal([]byte(text), &samples); err != nil || status != http.StatusOK || len(samples) != 1 {
		t.Fatalf("%d %s", status, text)
	}
	// At most the memory that it was made with is its own, whatever the container says.
	if m := samples[0]; time.Since(m.Timestamp) > time.Minute || m.CPUCount != 2 || m.CPUUsedPct <= 100 || m.MemUsed != 5 || m.MemTotal != 1<<30 || m.MemCache != 3 || m.DiskUsed < 9 || m.DiskTotal < m.DiskUsed {
		t.Errorf("%s", text)
	}
	const want = `{"timestamp":"2023-11-14T22:13:20Z","timestampUnix":1700000000,"cpuUsedPct":3,"cpuCount":2,"memUsed":5,"memTotal":7,"memCache":0,"diskUsed":9,"diskTotal":11}`
	got, err := json.Marshal(metric(persistent.Metrics{At: time.Unix(1700000000, 0), CPUs: 1.5, CPUPercent: 3, Memory: 5, MemoryLimit: 7, Disk: 9, DiskTotal: 11}))
	if err != nil || string(got) != want {
		t.Errorf("%s %v", got, err)
	}
}
