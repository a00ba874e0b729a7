package api

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"
	"github.com/pb33f/libopenapi-validator/config"
	"github.com/pb33f/libopenapi-validator/errors"
	"github.com/pb33f/libopenapi-validator/schema_validation"
	"github.com/pb33f/libopenapi/datamodel/high/base"
	v3 "github.com/pb33f/libopenapi/datamodel/high/v3"
)

// contract is openapi.yaml, read.
type contract struct {
	model     *v3.Document
	validator validator.Validator
	schemas   schema_validation.SchemaValidator
}

func readContract(t testing.TB) contract {
	t.Helper()
	c, err := theContract()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// theContract is read once, which takes a while.
var theContract = sync.OnceValues(func() (contract, error) {
	document, err := libopenapi.NewDocument(Spec)
	if err != nil {
		return contract{}, err
	}
	model, err := document.BuildV3Model()
	if err != nil {
		return contract{}, err
	}
	options := []config.Option{config.WithFormatAssertions()}
	validates, faults := validator.NewValidator(document, options...)
	if len(faults) > 0 {
		return contract{}, fmt.Errorf("%v", faults)
	}
	return contract{
		model:     &model.Model,
		validator: validates,
		schemas:   schema_validation.NewSchemaValidator(options...),
	}, nil
})

// hold makes an exchange with the server and holds it against the contract.
func (c contract) hold(t *testing.T, url string, x exchange) {
	t.Helper()
	// Once for the validator, once to be sent: both read the body.
	ok, faults := c.validator.ValidateHttpRequestSync(x.request(t, url))
	if ok == x.breaks {
		t.Errorf("the contract takes the request: %t, faults %v", ok, reasons(faults))
	}
	req := x.request(t, url)
	response, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != x.status {
		t.Fatalf("status %d, not %d: %s", response.StatusCode, x.status, body)
	}
	if x.accept != "" && x.status == http.StatusOK && response.Header.Get("Content-Type") != x.accept {
		t.Errorf("asked for %s, answered with %q", x.accept, response.Header.Get("Content-Type"))
	}
	if after := response.Header.Get("Retry-After"); (after != "") != (x.status == http.StatusTooManyRequests) {
		t.Errorf("Retry-After is %q", after)
	}
	parts := [][]byte{body}
	if response.Header.Get("Content-Type") == ndjson {
		parts = bytes.Split(bytes.TrimSuffix(body, []byte("\n")), []byte("\n"))
	}
	for _, part := range parts {
		response.Body = io.NopCloser(bytes.NewReader(part))
		if ok, faults := c.validator.ValidateHttpResponse(req, response); !ok {
			t.Errorf("the contract has no answer %s: %v", part, reasons(faults))
		}
	}
}

// takes reports whether a schema takes a JSON text, and if not, why.
func (c contract) takes(schema *base.Schema, text []byte) (bool, []string) {
	ok, faults := c.schemas.ValidateSchemaBytesWithVersion(schema, text, 3.1)
	return ok, reasons(faults)
}

// component finds a schema by name.
func (c contract) component(t *testing.T, name string) *base.Schema {
	t.Helper()
	proxy, ok := c.model.Components.Schemas.Get(name)
	if !ok {
		t.Fatalf("the contract has no schema %s", name)
	}
	return proxy.Schema()
}

func reasons(faults []*errors.ValidationError) []string {
	var all []string
	for _, fault := range faults {
		all = append(all, fault.Reason)
		for _, detail := range fault.SchemaValidationErrors {
			all = append(all, strings.TrimSpace(detail.FieldPath+" "+detail.Reason))
		}
	}
	return all
}
