package e2b

import (
	"cmp"
	"net/http"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/daycare-run/sandbox/internal/workload/persistent"
)

// createBody is what a client says about a sandbox to be created.
type createBody struct {
	TemplateID   string            `json:"templateID"`
	Timeout      *int64            `json:"timeout"`
	Metadata     map[string]string `json:"metadata"`
	EnvVars      map[string]string `json:"envVars"`
	Internet     *bool             `json:"allow_internet_access"`
	Network      jsontext.Value    `json:"network"`
	AutoPause    *bool             `json:"autoPause"`
	KeepMemory   *bool             `json:"autoPauseMemory"`
	AutoResume   *autoResume       `json:"autoResume"`
	Secure       *bool             `json:"secure"`
	MCP          jsontext.Value    `json:"mcp"`
	IAM          jsontext.Value    `json:"iam"`
	VolumeMounts []jsontext.Value  `json:"volumeMounts"`
}

type autoResume struct {
	Enabled bool `json:"enabled"`
	// Timeout is how long a sandbox that a call has resumed is to live.
	Timeout *int64 `json:"timeout"`
}

func given(value jsontext.Value) bool {
	text := strings.TrimSpace(string(value))
	return text != "" && text != "null"
}

func isSet(flag *bool) bool { return flag != nil && *flag }

func (c controlCall) create(w http.ResponseWriter, req *http.Request) error {
	asked, err := c.askedBy(req)
	if err != nil {
		return err
	}
	if c.server.cfg.Cluster != nil {
		asked.ID = req.Header.Get(sandboxHeader)
	}
	b, err := c.server.cfg.Sandboxes.Create(req.Context(), c.Token, asked)
	if err != nil {
		return err
	}
	answer(w, http.StatusCreated, c.made(b.Info()))
	return nil
}

// askedBy reads what a call asks for that creates.
func (c controlCall) askedBy(req *http.Request) (persistent.Create, error) {
	var body createBody
	if err := read(req, &body); err != nil {
		return persistent.Create{}, err
	}
	asked, err := c.asked(body)
	if err == nil {
		asked.Deadline, err = deadline(req, body.Timeout)
	}
	return asked, err
}

// asked translates what a client says for package persistent. It refuses by name what this service
// cannot do, or cannot enforce.
func (c controlCall) asked(body createBody) (persistent.Create, error) {
	switch {
	case given(body.MCP):
		return persistent.Create{}, invalid("mcp: there is no MCP gateway here: leave it out")
	case given(body.IAM):
		return persistent.Create{}, invalid("iam: there are no identities here: leave it out")
	case len(body.VolumeMounts) > 0:
		return persistent.Create{}, invalid("volumeMounts: there are no volumes here: leave it out")
	case body.KeepMemory != nil && !*body.KeepMemory:
		return persistent.Create{},
			invalid("autoPauseMemory: false is not possible: a sandbox that is paused keeps what is in its memory")
	case body.AutoResume != nil && body.AutoResume.Timeout != nil:
		return persistent.Create{},
			invalid("autoResume.timeout is not known here: a sandbox that is resumed keeps its deadline")
	}
	asked := persistent.Create{
		Metadata: body.Metadata, Env: body.EnvVars, AutoResume: body.AutoResume != nil &&
			body.AutoResume.Enabled,
	}
	var err error
	if asked.Template, err = c.named(cmp.Or(body.TemplateID, baseTemplate)); err != nil {
		return persistent.Create{}, err
	}
	if isSet(body.AutoPause) {
		asked.OnDeadline = persistent.Pause
	}
	var kept note
	if asked.Network, kept, err = c.policy(body.Internet, body.Network); err != nil {
		return persistent.Create{}, err
	}
	asked.Note, err = json.Marshal(kept)
	return asked, err
}
