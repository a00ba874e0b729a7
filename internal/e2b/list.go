package e2b

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/daycare-run/sandbox/internal/workload/persistent"
)

// maxPage is the maximum number of sandboxes on a page.
const maxPage = 100

// filter says which sandboxes to list, and how.
type filter struct {
	metadata  map[string]string
	states    []string // none for all
	template  string
	after     time.Time
	ascending bool
	limit     int
	// from is where the page begins: after the sandbox with this place in the order; empty for the
	// first page.
	from string
}

// list answers with the caller's sandboxes, by default the latest started first.
func (c controlCall) list(w http.ResponseWriter, req *http.Request) error {
	f, err := readFilter(req.URL.Query())
	if err != nil {
		return err
	}
	all, err := c.all(req.Context())
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(i persistent.Info) bool { return !f.has(i) })
	slices.SortFunc(all, func(a, b persistent.Info) int { return f.order(placeOf(a), placeOf(b)) })
	page := []listedBody{}
	for _, i := range all {
		if f.from != "" && f.order(placeOf(i), f.from) <= 0 {
			continue
		}
		if len(page) == f.limit {
			w.Header().Set("X-Next-Token", base64.RawURLEncoding.EncodeToString([]byte(f.from)))
			break
		}
		page = append(page, listed(i))
		f = f.behind(i)
	}
	answer(w, http.StatusOK, page)
	return nil
}

// placeOf returns a sandbox's place in the order of all, as text that sorts that way.
func placeOf(i persistent.Info) string {
	return i.Started.UTC().Format("20060102150405.000000000") + i.ID
}

func (f filter) order(a, b string) int {
	if f.ascending {
		return strings.Compare(a, b)
	}
	return strings.Compare(b, a)
}

func (f filter) behind(i persistent.Info) filter {
	f.from = placeOf(i)
	return f
}

func (f filter) has(i persistent.Info) bool {
	if i.State == persistent.StateEnded ||
		len(f.states) > 0 && !slices.Contains(f.states, listed(i).State) {
		return false
	}
	for key, want := range f.metadata {
		if value, ok := i.Metadata[key]; !ok || value != want {
			return false
		}
	}
	return (f.template == "" || i.Template == f.template) && !i.Started.Before(f.after)
}

func readFilter(query url.Values) (f filter, err error) {
	if f.metadata, err = readMetadata(query.Get("metadata")); err != nil {
		return filter{}, err
	}
	for _, list := range query["state"] {
		for state := range strings.SplitSeq(list, ",") {
			if state != "running" && state != "paused" {
				return filter{}, invalid("state %.100q is neither running nor paused", state)
			}
			f.states = append(f.states, state)
		}
	}
	f.template = query.Get("template")
	if after := query.Get("startedAfter"); after != "" {
		if f.after, err = time.Parse(time.RFC3339Nano, after); err != nil {
			return filter{}, invalid("startedAfter %.100q is no time", after)
		}
	}
	switch order := query.Get("order"); order {
	case "", "desc":
	case "asc":
		f.ascending = true
	default:
		return filter{}, invalid("order %.100q is neither asc nor desc", order)
	}
	f.limit = maxPage
	if limit := query.Get("limit"); limit != "" {
		if f.limit, err = strconv.Atoi(limit); err != nil || f.limit < 1 || f.limit > maxPage {
			return filter{}, invalid("limit %.100q is not from 1 to %d", limit, maxPage)
		}
	}
	from, err := base64.RawURLEncoding.DecodeString(query.Get("nextToken"))
	if err != nil {
		return filter{}, invalid("nextToken is not one that came with a page")
	}
	f.from = string(from)
	return f, nil
}

// readMetadata reads a query string in which keys and values are escaped once more.
func readMetadata(text string) (map[string]string, error) {
	values, err := url.ParseQuery(text)
	if err != nil {
		return nil, invalid("metadata is no query string")
	}
	metadata := map[string]string{}
	for key, list := range values {
		name, err := url.QueryUnescape(key)
		value, err2 := url.QueryUnescape(list[0])
		if err != nil || err2 != nil {
			return nil, invalid("metadata is not escaped as clients do it")
		}
		metadata[name] = value
	}
	return metadata, nil
}
