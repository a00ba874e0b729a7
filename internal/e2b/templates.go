package e2b

import (
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/workload/persistent"
)

// builds is what calls about templates are for, except those that only look at the templates there
// are.
const builds = "templates that are built or changed by calls; the operator names images in e2b.templates"

// noBuild stands for the id of a build, of which there are none.
const noBuild = "00000000-0000-0000-0000-000000000000"

// defaultTag is the tag of each template, for the image that the settings name.
const defaultTag = "default"

// templateBody is a template in a list.
type templateBody struct {
	TemplateID    string     `json:"templateID"`
	Names         []string   `json:"names"`
	Aliases       []string   `json:"aliases"`
	BuildID       string     `json:"buildID"`
	BuildStatus   string     `json:"buildStatus"`
	BuildCount    int        `json:"buildCount"`
	CPUCount      int        `json:"cpuCount"`
	MemoryMB      int64      `json:"memoryMB"`
	DiskSizeMB    int64      `json:"diskSizeMB"`
	EnvdVersion   string     `json:"envdVersion"`
	Public        bool       `json:"public"`
	CreatedAt     time.Time  `json:"createdAt"`
	UpdatedAt     time.Time  `json:"updatedAt"`
	CreatedBy     *struct{}  `json:"createdBy"`
	LastSpawnedAt *time.Time `json:"lastSpawnedAt"`
	SpawnCount    int64      `json:"spawnCount"`
}

// Templates are those of sandboxes by name, besides "base". They may change at any time.
type Templates struct {
	present atomic.Pointer[map[string]persistent.Template]
}

// NewTemplates returns Templates by name.
func NewTemplates(byName map[string]persistent.Template) *Templates {
	t := &Templates{}
	t.Use(byName)
	return t
}

// Use replaces the templates for later calls.
func (t *Templates) Use(byName map[string]persistent.Template) { t.present.Store(&byName) }

// templates returns all templates, the base among them, by name.
func (c controlCall) templates() map[string]persistent.Template {
	all := maps.Clone(*c.server.cfg.Templates.present.Load())
	if all == nil {
		all = map[string]persistent.Template{}
	}
	base := all[baseTemplate]
	base.Name = baseTemplate
	all[baseTemplate] = base
	return all
}

// listTemplates answers with the templates that sandboxes can be made from. One whose image cannot
// be used is in error.
func (c controlCall) listTemplates(w http.ResponseWriter, req *http.Request) error {
	all, list := c.templates(), []templateBody{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		t := all[name]
		told := templateBody{
			TemplateID: name, Names: []string{name}, Aliases: []string{name}, BuildID: noBuild,
			BuildStatus: "ready", BuildCount: 1, EnvdVersion: envdVersion,
			CreatedAt: c.server.since.UTC(), UpdatedAt: c.server.since.UTC(),
		}
		limits, err := c.server.cfg.Service.PersistentLimits(req.Context(),
			plan.Persistent{Image: t.Image, CPUs: t.CPUs, Memory: t.Memory})
		if err != nil {
			told.BuildStatus = "error"
		}
		told.CPUCount, told.MemoryMB = int(math.Ceil(float64(limits.NanoCPUs)/1e9)),
			limits.Memory>>20
		list = append(list, told)
	}
	answer(w, http.StatusOK, list)
	return nil
}

// named returns the template of a name, with or without the one tag that each has.
func (c controlCall) named(name string) (persistent.Template, error) {
	bare := strings.TrimSuffix(name, ":"+defaultTag)
	t, known := c.templates()[bare]
	if !known {
		return t, notFound(
			"template %.100q not found: the operator names templates in e2b.templates of the settings",
			name)
	}
	t.Name = bare
	return t, nil
}

// templateAlias answers whether there is a template of a name.
func (c controlCall) templateAlias(w http.ResponseWriter, req *http.Request) error {
	t, err := c.named(req.PathValue("alias"))
	if err != nil {
		return err
	}
	answer(w, http.StatusOK, struct {
		TemplateID string `json:"templateID"`
		Public     bool   `json:"public"`
	}{TemplateID: t.Name})
	return nil
}

// tagBody is a tag of a template.
type tagBody struct {
	Tag       string    `json:"tag"`
	BuildID   string    `json:"buildID"`
	CreatedAt time.Time `json:"createdAt"`
}

// ofTemplate answers with the tags of a template, and has nothing else of one.
func (c controlCall) ofTemplate(w http.ResponseWriter, req *http.Request) error {
	if req.PathValue("part") != "tags" {
		return later(builds)(c, w, req)
	}
	if _, err := c.named(req.PathValue("template")); err != nil {
		return err
	}
	answer(w, http.StatusOK,
		[]tagBody{{Tag: defaultTag, BuildID: noBuild, CreatedAt: c.server.since.UTC()}})
	return nil
}
