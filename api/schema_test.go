package api

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/pb33f/libopenapi/datamodel/high/base"
	v3 "github.com/pb33f/libopenapi/datamodel/high/v3"
	"github.com/pb33f/libopenapi/orderedmap"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/workload/process"
)

func TestContractIsValid(t *testing.T) {
	if ok, faults := readContract(t).validator.ValidateDocument(); !ok {
		t.Error(reasons(faults))
	}
}

func TestContractHasTheRoutes(t *testing.T) {
	var served, promised []string
	for _, r := range routes {
		served = append(served, r.pattern)
	}
	for path, item := range readContract(t).model.Paths.PathItems.FromOldest() {
		for method := range item.GetOperations().FromOldest() {
			promised = append(promised, strings.ToUpper(method)+" "+path)
		}
	}
	slices.Sort(served)
	slices.Sort(promised)
	if diff := cmp.Diff(served, promised); diff != "" {
		t.Errorf("served (-), in openapi.yaml (+):\n%s", diff)
	}
}

// The contract and the code agree on the statuses of each kind.
func TestContractHasTheKinds(t *testing.T) {
	c := readContract(t)
	served, promised, kinds := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, class := range classes {
		served[fmt.Sprintf("%s %d", class.kind, class.status)] = true
		kinds[string(class.kind)] = true
	}
	for _, item := range c.model.Paths.PathItems.FromOldest() {
		for method, operation := range item.GetOperations().FromOldest() {
			for code, response := range operation.Responses.Codes.FromOldest() {
				if code < "400" || method == "head" {
					continue
				}
				kind := example(t, response.Content.GetOrZero("application/json")).Error.Kind
				promised[string(kind)+" "+code] = true
			}
		}
	}
	// What no operation has.
	elsewhere := c.model.Components.Responses.GetOrZero("MethodNotAllowed")
	promised[string(example(t, elsewhere.Content.GetOrZero("application/json")).Error.Kind)+" 405"] = true
	if diff := cmp.Diff(served, promised); diff != "" {
		t.Errorf("served (-), in openapi.yaml (+):\n%s", diff)
	}
	// What no operation has a hand in.
	served["invalid 417"], served["tooLarge 431"] = true, true
	table := map[string]bool{}
	for _, row := range regexp.MustCompile(`(?m)^\| (\w+) +\| (\d{3}) +\|`).FindAllStringSubmatch(c.model.Info.Description, -1) {
		table[row[1]+" "+row[2]] = true
	}
	if diff := cmp.Diff(served, table); diff != "" {
		t.Errorf("served (-), in the table of openapi.yaml (+):\n%s", diff)
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(kinds)), enum(c.component(t, "Kind"))); diff != "" {
		t.Errorf("served (-), in the schema Kind (+):\n%s", diff)
	}
}

// example is the failure that a response shows.
func example(t *testing.T, media *v3.MediaType) types.Failure {
	t.Helper()
	for _, e := range media.Examples.FromOldest() {
		var value types.Failure
		if err := e.Value.Decode(&value); err != nil {
			t.Fatal(err)
		}
		return value
	}
	t.Fatal("a failure without an example")
	return types.Failure{}
}

// TestSchemasHaveTheKeys holds the Go types and the schemas against each other.
func TestSchemasHaveTheKeys(t *testing.T) {
	c := readContract(t)
	for _, value := range []any{
		types.Registration{}, types.Permissions{}, types.Sandbox{}, types.SandboxList{},
		types.Exec{}, types.Terminal{}, types.DetachedExec{}, types.DetachedExecList{}, types.Result{}, types.Output{}, types.Event{}, types.Input{},
		types.Mount{}, types.Target{}, types.Read{}, types.ReadResult{}, types.Write{}, types.Written{}, types.Unpacked{},
		types.Entry{}, types.Listing{}, types.Mkdir{}, types.Made{}, types.Move{}, types.Remove{},
		types.Done{}, types.Explain{}, types.Explanation{}, types.Place{},
		types.Refusal{}, types.Hint{}, types.Decision{}, types.DecisionList{},
		types.StartProcess{}, types.Process{}, types.StartedProcess{}, types.ProcessList{}, types.StopProcess{}, types.ExecSignal{},
		types.ProcessLog{}, types.ProcessLogEnd{},
		types.PutCredential{}, types.Credential{}, types.CredentialList{},
		types.Container{}, types.ContainerList{}, types.Health{}, types.Failure{}, types.Error{},
	} {
		goType := reflect.TypeOf(value)
		t.Run(goType.Name(), func(t *testing.T) {
			schema := c.component(t, goType.Name())
			keys, always := goKeys(goType)
			properties, required := schemaKeys(schema)
			if diff := cmp.Diff(keys, properties); diff != "" {
				t.Errorf("keys of the Go type (-), of the schema (+):\n%s", diff)
			}
			if closed := schema.AdditionalProperties != nil; closed {
				return // a request: the caller may leave out what the Go type always writes
			}
			if diff := cmp.Diff(always, required); diff != "" {
				t.Errorf("always written (-), required (+):\n%s", diff)
			}
		})
	}
}

// goKeys are a type's JSON keys, and those that it always writes.
func goKeys(of reflect.Type) (keys, always []string) {
	for _, f := range reflect.VisibleFields(of) {
		tag, tagged := f.Tag.Lookup("json")
		if !tagged {
			continue // an embedded struct; its fields come themselves
		}
		name, options, _ := strings.Cut(tag, ",")
		keys = append(keys, name)
		if options == "" && !optional(of, f) {
			always = append(always, name)
		}
	}
	slices.Sort(keys)
	slices.Sort(always)
	return keys, always
}

// optional says that a field comes with an embedded pointer, which may be nil.
func optional(of reflect.Type, f reflect.StructField) bool {
	return len(f.Index) > 1 && of.FieldByIndex(f.Index[:1]).Type.Kind() == reflect.Pointer
}

// schemaKeys are a schema's properties with those of allOf, and the required ones.
func schemaKeys(s *base.Schema) (keys, required []string) {
	for name := range s.Properties.FromOldest() {
		keys = append(keys, name)
	}
	required = slices.Clone(s.Required)
	for _, part := range s.AllOf {
		k, r := schemaKeys(part.Schema())
		keys, required = append(keys, k...), append(required, r...)
	}
	slices.Sort(keys)
	slices.Sort(required)
	return keys, required
}

// TestSchemasHaveTheValues holds the enumerations against each other.
func TestSchemasHaveTheValues(t *testing.T) {
	c := readContract(t)
	property := func(schema, name string) *base.Schema {
		return c.component(t, schema).Properties.GetOrZero(name).Schema()
	}
	var limits []string
	for _, r := range quota.Resources() {
		limits = append(limits, r.String())
	}
	for _, tt := range []struct {
		name   string
		values []string
		schema *base.Schema
	}{
		{"events", []string{"start", "stdout", "stderr", "lost", "stdin", "egress", "keepalive", "exit", "error"}, property("Event", "type")},
		{"inputs", []string{string(types.InputEOF), string(types.InputSignal), string(types.InputResize)}, property("Input", "type")},
		{"reads", []string{string(types.ReadText), string(types.ReadImage), string(types.ReadBinary)}, property("ReadResult", "type")},
		{"encodings", []string{string(types.Base64)}, c.component(t, "Encoding")},
		{"limits", limits, property("Error", "limit")},
		{"verdicts", texts(verdicts), c.component(t, "Verdict")},
		{"vias", texts(vias), c.component(t, "Via").AnyOf[0].Schema()},
		{"states", texts([]process.State{process.Running, process.Stopped, process.Exited, process.Paused}), c.component(t, "ProcessState")},
	} {
		slices.Sort(tt.values)
		if diff := cmp.Diff(tt.values, enum(tt.schema)); diff != "" {
			t.Errorf("%s: in Go (-), in openapi.yaml (+):\n%s", tt.name, diff)
		}
	}
	for _, name := range signalNames {
		for _, written := range []string{name, "SIG" + name} {
			if ok, why := c.takes(c.component(t, "Input"), []byte(`{"type":"signal","signal":"`+written+`"}`)); !ok {
				t.Errorf("the contract does not take signal %s: %v", written, why)
			}
		}
	}
}

func texts[Word ~string](words []Word) []string {
	list := make([]string, len(words))
	for i, word := range words {
		list[i] = string(word)
	}
	return list
}

func enum(s *base.Schema) []string {
	var values []string
	for _, node := range s.Enum {
		values = append(values, node.Value)
	}
	slices.Sort(values)
	return values
}

// TestExamplesAreRight holds every example against the schema beside it.
func TestExamplesAreRight(t *testing.T) {
	c := readContract(t)
	check := func(where string, content *orderedmap.Map[string, *v3.MediaType]) {
		for kind, media := range content.FromOldest() {
			if media.Examples.Len() == 0 {
				t.Errorf("%s: %s has no example", where, kind)
			}
			for name, e := range media.Examples.FromOldest() {
				var value any
				if err := e.Value.Decode(&value); err != nil {
					t.Fatal(err)
				}
				text, err := json.Marshal(value)
				if err != nil {
					t.Fatal(err)
				}
				if ok, why := c.takes(media.Schema.Schema(), text); !ok {
					t.Errorf("%s: example %s is wrong: %v", where, name, why)
				}
			}
		}
	}
	for path, item := range c.model.Paths.PathItems.FromOldest() {
		for method, operation := range item.GetOperations().FromOldest() {
			if operation.RequestBody != nil {
				check(method+" "+path, operation.RequestBody.Content)
			}
			for code, response := range operation.Responses.Codes.FromOldest() {
				check(method+" "+path+" "+code, response.Content)
			}
		}
	}
}

// TestMessagesOfAnAttachedExec holds what attach.go reads and writes against the schemas.
func TestMessagesOfAnAttachedExec(t *testing.T) {
	c := readContract(t)
	for _, tt := range []struct {
		schema, message string
		takes           bool
	}{
		{"Event", `{"type":"start"}`, true},
		{"Event", `{"type":"start","execId":"x-3kq7vbl2m5x4tawzr6yj2ce4nq","lost":5}`, true},
		{"Event", `{"type":"stdin","bytes":65536}`, true},
		{"Event", `{"type":"stdin"}`, false},
		{"Event", `{"type":"egress","refusal":{"name":"a.org","verdict":"denied","via":"dns","reason":"x","count":1}}`, true},
		{"Event", `{"type":"egress"}`, false},
		{"Event", `{"type":"keepalive"}`, true},
		{"Event", `{"type":"exit"}`, false},
		{"Event", `{"type":"error","error":{"kind":"wrong","message":"x"}}`, false},
		{"Input", `{"type":"eof"}`, true},
		{"Input", `{"type":"signal"}`, false},
		{"Input", `{"type":"signal","signal":"SEGV"}`, false},
		{"Input", `{"type":"signal","signal":"INT","to":1}`, false},
		{"Input", `{"type":"resize","rows":24,"cols":80}`, true},
		{"Input", `{"type":"resize","rows":24}`, false},
		{"Input", `{"type":"resize","rows":0,"cols":80}`, false},
		{"Exec", `{"argv":["top"],"tty":{}}`, true},
		{"Exec", `{"argv":["top"],"tty":{"cols":10001}}`, false},
		{"Exec", `{"argv":["top"],"tty":true}`, false},
		{"Exec", `{"command":""}`, false},
		{"Exec", `{"argv":[]}`, false},
		{"Exec", `{"command":"a\u0000b"}`, false},
	} {
		if ok, why := c.takes(c.component(t, tt.schema), []byte(tt.message)); ok != tt.takes {
			t.Errorf("%s takes %s: %t, %v", tt.schema, tt.message, ok, why)
		}
	}
}
