package member

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"os"

	"github.com/daycare-run/sandbox/config"
)

// Settings returns digests of the settings that must be the same on all hosts.
func (m *Membership) Settings(cfg config.Config) map[string]string {
	return SameSettings(cfg, m.sealing)
}

// SameSettings returns digests of the settings that must be the same on all hosts. They are keyed
// with the key that the hosts share, so they reveal only whether two settings are equal.
func SameSettings(cfg config.Config, sealing []byte) map[string]string {
	tokens, _ := os.ReadFile(cfg.TCP.TokensFile) // its errors are reported elsewhere
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
		"cluster.sealingKeyFile": nil, // with another key all digests differ
	} {
		text, err := json.Marshal(value)
		if err != nil {
			panic(err) // cannot happen: each can be written to the settings file
		}
		sum := hmac.New(sha256.New, sealing)
		sum.Write([]byte("setting " + key + "\n"))
		sum.Write(text)
		digests[key] = base64.RawStdEncoding.EncodeToString(sum.Sum(nil)[:16])
	}
	return digests
}
