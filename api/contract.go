package api

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"github.com/go-json-experiment/json"
	"go.yaml.in/yaml/v3"
)

// asJSON returns the contract as GET /v1/openapi.json serves it, and its ETag.
var asJSON = sync.OnceValues(func() (text []byte, tag string) {
	var document any
	if err := yaml.Unmarshal(Spec, &document); err != nil {
		panic(fmt.Sprintf("openapi.yaml: %v", err)) // it is part of this program, and tested
	}
	text, err := json.Marshal(document, json.Deterministic(true))
	if err != nil {
		panic(fmt.Sprintf("openapi.yaml: %v", err))
	}
	sum := sha256.Sum256(text)
	return text, `"` + hex.EncodeToString(sum[:16]) + `"`
})

func (s *server) contract(w http.ResponseWriter, req *http.Request) error {
	text, tag := asJSON()
	head := w.Header()
	head.Set("ETag", tag)
	head.Set("Cache-Control", "no-cache") // revalidate
	if strings.Contains(req.Header.Get("If-None-Match"), tag) {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	head.Set("Content-Type", "application/json")
	_, _ = w.Write(text) // an error means that the caller has gone
	return nil
}
