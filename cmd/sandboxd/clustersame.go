package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"os"

	"github.com/daycare-run/sandbox/config"
)

// sameSettings are those that have to be the same on all hosts, as digests under the key that hosts share: whoever compares
// them, or reads them on their way, learns nothing else.
func sameSettings(cfg config.Config, sealing []byte) map[string]string {
	tokens, _ := os.ReadFile(cfg.TCP.TokensFile) // whose faults are told elsewhere
	digests := map[string]string{}
	for key, value := range map[string]any{
		"homeOwner":              cfg.HomeOwner,
		"tcp.tokensFile":         tokens,
		"e2b.listen":             cfg.E2B.Listen != "",
		"e2b.domain":             cfg.E2B.Domain,
		"e2b.defaultNetwork":     cfg.E2B.DefaultNetwork,
		"e2b.allowRoot":          cfg.E2B.AllowRoot,
		"e2b.templates":          cfg.E2B.Templates,
		"cluster.homes":          cfg.Cluster.Homes,
		"cluster.fenceCommand":   cfg.Cluster.FenceCommand,
		"cluster.sealingKeyFile": nil, // any difference is the key's
	} {
		text, err := json.Marshal(value)
		if err != nil {
			panic(err) // each can be written to the settings file
		}
		sum := hmac.New(sha256.New, sealing)
		sum.Write([]byte("setting " + key + "\n"))
		sum.Write(text)
		digests[key] = base64.RawStdEncoding.EncodeToString(sum.Sum(nil)[:16])
	}
	return digests
}
