package api

import (
	"net/http"
	"slices"
	"strings"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
)

func (s *server) decisions(w http.ResponseWriter, req *http.Request) error {
	q, err := readDecisionQuery(req)
	if err != nil {
		return err
	}
	room := int(q.limit) * decisionBytes
	if s.cfg.Nodes != nil && !q.follow && q.filter.User == "" { // the other hosts answer with as many
		hosts := len(slices.DeleteFunc(s.cfg.Nodes.List(), func(n types.Node) bool {
			return n.Lost
		}))
		room = max(room, min(room*hosts, s.memory.of.Stats().Total/8))
	}
	if err := s.memory.take(room); err != nil {
		return err
	}
	if q.follow {
		return s.follow(w, req, q)
	}
	recent, silent := q.recent(s.service.Decisions()), []string(nil)
	all := func(yield func(types.Decision) bool) {
		for _, d := range recent {
			line := decision(d)
			line.Node = s.host()
			if !yield(line) {
				return
			}
		}
	}
	if s.cfg.Router != nil {
		list := slices.Collect(all)
		silent = fromOthers(s, req, func(host string, others types.DecisionList) {
			for _, d := range others.Decisions {
				d.Node = host
				list = append(list, d)
			}
		})
		slices.SortStableFunc(list, func(a, b types.Decision) int { return a.Time.Compare(b.Time) })
		all = slices.Values(list[max(len(list)-int(q.limit), 0):])
	}
	s.answer(w, http.StatusOK, decisionAnswer{all, silent})
	return nil
}

// decisionBytes is the memory that one of the decisions asked for takes: Recent makes room for
// twice as many.
const decisionBytes = 512

// decisionAnswer is a types.DecisionList that makes its decisions while encoding: all at once would
// take megabytes per caller.
type decisionAnswer struct {
	Decisions  lazyList[types.Decision] `json:"decisions"`
	Unanswered []string                 `json:"unanswered,omitempty"`
}

// recent returns the latest decisions that the query asks for, oldest first.
func (q decisionQuery) recent(log *decisions.Log) []decisions.Decision {
	if q.limit == 0 { // which the log takes as all
		return nil
	}
	return log.Recent(q.filter, int(q.limit))
}

// decision converts a decision to JSON's form.
func decision(d decisions.Decision) types.Decision {
	return types.Decision{
		Seq: d.Seq, Time: d.Time.UTC(), First: d.First.UTC(), Count: d.Count, UserID: d.User,
		Container: d.Container, Name: utf8Text(d.Name), Via: types.Via(d.Via), Port: d.Port,
		Type: d.Type, Verdict: types.Verdict(d.Verdict), Reason: utf8Text(d.Reason),
	}
}

// refusals converts what a call could not reach; the result is never nil.
func refusals(lines []decisions.Summary) []types.Refusal {
	list := make([]types.Refusal, len(lines))
	for i, line := range lines {
		list[i] = types.Refusal{
			Name: utf8Text(line.Name), Port: line.Port, Verdict: types.Verdict(line.Verdict),
			Via: types.Via(line.Via), Reason: utf8Text(line.Reason), Count: line.Count,
		}
	}
	return list
}

// utf8Text keeps text that a tenant sent from making an event invalid.
func utf8Text(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }
