package main

import (
	"fmt"
	"slices"
	"time"
)

// These are the targets of the console's page.
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
		how: fmt.Sprintf("The console in Chromium, 1280 × 1000, without a GPU. The service is a process of its own with the real API, events\n"+
			"and decisions; its containers are made up. A call and a decision come every %d ms. First content: from the answer\n"+
			"with the page until a row of a list is drawn. Scrolling: %d frames, each of which moves the longest list by two\n"+
			"rows. A frame's work lasts from its beginning until the page's own thread is through with it: events, scripts,\n"+
			"style, layout, paint. Late frames came more than half a frame after they were due, for whatever reason; without a\n"+
			"GPU that is mostly the raster threads and the machine. The plain page beside it only scrolls. The service's load is\n"+
			"how much more it takes with a page open than without one.", pagePeriod.Milliseconds(), pageFrames),
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
		judge("", "the service's load from one page", fmt.Sprintf("under %.0f %% of a core", 100*pageLoad), fmt.Sprintf("%.2f %%", 100*x.one), x.one, x.one < pageLoad && len(x.content) > 0),
		sized("", "the service's memory for ten pages", "at most "+mib(pagesTarget), x.ten, pagesTarget))
	return s
}
