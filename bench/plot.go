package main

import (
	"bytes"
	"fmt"
	"image/color"
	"slices"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

const pictureName = "latency.svg"

// Colours tell the ways apart, also for people who see red and green alike (Okabe and Ito).
var (
	apiColour    = color.RGBA{R: 0x00, G: 0x72, B: 0xb2, A: 0xff}
	dockerColour = color.RGBA{R: 0xd5, G: 0x5e, B: 0x00, A: 0xff}
	floorColour  = color.RGBA{R: 0x70, G: 0x70, B: 0x70, A: 0xff}
	gridColour   = color.RGBA{R: 0xe4, G: 0xe4, B: 0xe4, A: 0xff}
)

// dashes tell the runtimes apart, in their order; the first is a solid line.
var dashes = [][]vg.Length{nil, {vg.Points(6), vg.Points(3)}, {vg.Points(2), vg.Points(2)}}

// drawLatency draws how warm execs' latencies are distributed, as SVG.
func drawLatency(f findings) ([]byte, error) {
	p, legend := newPlot(), newLegend()
	var all sample
	for i, r := range f.runtimes {
		l := r.latency
		for _, line := range []struct {
			name   string
			sample sample
			colour color.Color
		}{{"floor", l.floor, floorColour}, {"API", l.api, apiColour}, {"docker exec", l.docker, dockerColour}} {
			drawn, err := plotter.NewLine(distribution(line.sample))
			if err != nil {
				return nil, fmt.Errorf("cannot draw the latencies: %w", err)
			}
			drawn.StepStyle = plotter.PostStep
			drawn.LineStyle = draw.LineStyle{Color: line.colour, Width: vg.Points(1.8), Dashes: dashes[i%len(dashes)]}
			p.Add(drawn)
			legend.Add(r.runtime+", "+line.name, drawn)
			all = append(all, line.sample...)
		}
	}
	p.X.Min, p.X.Max = inMillis(all.percentile(0))/1.2, inMillis(all.percentile(100))*1.2
	p.Y.Min, p.Y.Max = 0, 1
	canvas := vgsvg.NewWith(vgsvg.UseWH(10*vg.Inch, 5*vg.Inch))
	whole := draw.Crop(draw.New(canvas), vg.Points(10), -vg.Points(10), vg.Points(10), -vg.Points(10))
	const beside = 150 // points, for the legend
	p.Draw(draw.Crop(whole, 0, -vg.Points(beside), 0, 0))
	legend.Draw(draw.Crop(whole, whole.Max.X-whole.Min.X-vg.Points(beside-15), 0, 0, -vg.Points(30)))
	var svg bytes.Buffer
	if _, err := canvas.WriteTo(&svg); err != nil {
		return nil, fmt.Errorf("cannot draw the latencies: %w", err)
	}
	// Where there is no Liberation Sans, a font of the same measures.
	return bytes.ReplaceAll(svg.Bytes(), []byte("font-family:Liberation Sans;"), []byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif;")), nil
}

func newLegend() plot.Legend {
	legend := plot.NewLegend()
	legend.Left, legend.Top = true, true
	legend.ThumbnailWidth, legend.Padding = vg.Points(28), vg.Points(4)
	legend.TextStyle.Font.Variant, legend.TextStyle.Font.Size = "Sans", 11
	return legend
}

func newPlot() *plot.Plot {
	p := plot.New()
	p.Title.Text = "Warm exec of true: share of calls that took at most so long"
	p.X.Label.Text = "milliseconds (logarithmic)"
	p.Y.Label.Text = "share of calls"
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.TickerFunc(logTicks)
	p.Y.Tick.Marker = plot.TickerFunc(shareTicks)
	p.Title.Padding, p.X.Padding, p.Y.Padding = vg.Points(8), 0, 0
	for _, style := range []*text.Style{&p.Title.TextStyle, &p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label} {
		style.Font.Variant, style.Font.Size = "Sans", font.Length(11)
	}
	p.Title.TextStyle.Font.Size = 13
	grid := plotter.NewGrid()
	grid.Horizontal.Color, grid.Vertical.Color = gridColour, gridColour
	p.Add(grid)
	return p
}

// distribution is the empirical one: at each value, the share of the sample up to it.
func distribution(s sample) plotter.XYs {
	sorted := slices.Sorted(slices.Values(s))
	points := make(plotter.XYs, 0, len(sorted)+1)
	for i, d := range sorted {
		if i == 0 {
			points = append(points, plotter.XY{X: inMillis(d), Y: 0})
		}
		points = append(points, plotter.XY{X: inMillis(d), Y: float64(i+1) / float64(len(sorted))})
	}
	return points
}

func inMillis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// logTicks are 1, 2 and 5 of each power of ten, with thin ones in between.
func logTicks(low, high float64) []plot.Tick {
	var ticks []plot.Tick
	for power := 0.001; power <= high; power *= 10 {
		for digit := 1.0; digit < 10; digit++ {
			value := digit * power
			if value < low || value > high {
				continue
			}
			tick := plot.Tick{Value: value}
			if digit == 1 || digit == 2 || digit == 5 {
				tick.Label = fmt.Sprintf("%.4g", value)
			}
			ticks = append(ticks, tick)
		}
	}
	return ticks
}

func shareTicks(_, _ float64) []plot.Tick {
	var ticks []plot.Tick
	for percent := 0; percent <= 100; percent += 10 {
		tick := plot.Tick{Value: float64(percent) / 100}
		if percent%20 == 0 {
			tick.Label = fmt.Sprintf("%d%%", percent)
		}
		ticks = append(ticks, tick)
	}
	return ticks
}
