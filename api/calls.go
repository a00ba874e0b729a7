package api

import (
	"fmt"
	"net/http"
	"strconv"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/calls"
)

// calls answers with the counts and times of the last hour's calls.
func (s *server) calls(*http.Request) (types.CallHour, error) {
	minutes, all := s.service.Calls()
	told := types.CallHour{Minutes: []types.CallMinute{}, Hour: callMinute(all)}
	for _, m := range minutes {
		told.Minutes = append(told.Minutes, callMinute(m))
	}
	return told, nil
}

func callMinute(m calls.Minute) types.CallMinute {
	told := types.CallMinute{BeganAt: m.Begun, Calls: m.Calls, Refused: m.Refused,
		Ways: []types.WayTimes{}}
	for _, way := range m.Ways {
		told.Ways = append(told.Ways, types.WayTimes{
			Way: way.Way, Calls: way.Calls, Start: percentiles(way.Start),
			FirstByte: percentiles(way.FirstByte), End: percentiles(way.End),
		})
	}
	return told
}

func percentiles(p calls.Percentiles) types.Percentiles {
	return types.Percentiles{P50Ms: milliseconds(p.P50), P95Ms: milliseconds(p.P95)}
}

// output answers with a running command's latest output.
func (s *server) output(req *http.Request) (types.CallOutput, error) {
	call, _ := strconv.ParseUint(req.PathValue("callId"), 10, 64) // an invalid number is no call's id
	text, cut, err := s.service.Output(req.PathValue("id"), call)
	return types.CallOutput{Output: utf8Text(string(text)), Cut: cut}, err
}

// doctor checks the host, for callers who act for everyone.
func (s *server) doctor(req *http.Request) (types.DoctorReport, error) {
	if s.cfg.Doctor == nil {
		return types.DoctorReport{},
			fmt.Errorf("this service does not check its host: %w", cerrdefs.ErrNotFound)
	}
	return s.cfg.Doctor(req.Context())
}
