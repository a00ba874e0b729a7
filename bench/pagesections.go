package main

import (
	"fmt"
	"slices"
	"time"
)

// What the console's page may take.
const (
	contentTarget = time.Second
	lateTarget    = 0.05
	pageLoad      = 0.02
	pagesTarget   = int64(64 << 20)
)

func consoleSection(f findings) section {
	x := f.page
	s := section{
		title: fmt.Sprintf("The console, with %d containers and %d decisions", pageContainers, pageDecisions),
		how: "The console in Chromium, 1280 × 1000, without a GPU. The service is a process of its own with the real API, events and\n" +
			fmt.Sprintf("decisions; its containers are made up. A call and a decision come every %d ms. First content: from the answer with the\n", pagePeriod.Milliseconds()) +
			fmt.Sprintf("page until a row of a list is drawn. Scrolling: %d frames, each of which moves the longest list by two rows. A frame's\n", pageFrames) +
			"work is from its begin until the page's own thread is through with it: events, scripts, style, layout, paint. Late are frames\n" +
			"that came more than half a frame after they were due, for whatever reason, which without a GPU is mostly the raster\n" +
			"threads' and the machine's; the plain page beside it does nothing but scroll. The service's load is what it takes with a\n" +
			"page open more than without one.",
		head: row([]string{"page"}, append(slices.Clone(percentileColumns), "longer than a frame", "late")),
	}
	for _, v := range append([]viewFrames{{"plain", x.plain}}, x.views...) {
		s.rows = append(s.rows, row([]string{v.name}, append(percentiles(v.sample()), fmt.Sprint(v.over()), fmt.Sprint(v.Late))))
	}
	for _, v := range x.views {
		part := float64(v.over()) / float64(max(len(v.Work), 1))
		s.verdicts = append(s.verdicts, judge("", v.name+": frames whose work takes longer than a frame", fmt.Sprintf("at most %.0f %%", 100*lateTarget), fmt.Sprintf("%.1f %%", 100*part), part, len(v.Work) > 0 && part <= lateTarget))
	}
	if len(x.content) > 0 {
		s.verdicts = append(s.verdicts, within("", "first content", slices.Max(x.content), contentTarget))
	}
	s.verdicts = append(s.verdicts,
		judge("", "the service's load by a page", fmt.Sprintf("under %.0f %% of a core", 100*pageLoad), fmt.Sprintf("%.2f %%", 100*x.one), x.one, x.one < pageLoad && len(x.content) > 0),
		sized("", "the service's memory by ten pages", "at most "+mib(pagesTarget), x.ten, pagesTarget))
	return s
}
