package main

import (
	"bytes"
	"fmt"
	"image/color"
	"strings"
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

// The colours of the ways can be told apart even by people who see red and green alike (Okabe and
// Ito).
var (
	apiColour    = color.RGBA{R: 0x00, G: 0x72, B: 0xb2, A: 0xff}
	dockerColour = color.RGBA{R: 0xd5, G: 0x5e, B: 0x00, A: 0xff}
	floorColour  = color.RGBA{R: 0x70, G: 0x70, B: 0x70, A: 0xff}
	gridColour   = color.RGBA{R: 0xe4, G: 0xe4, B: 0xe4, A: 0xff}
)

// line is one line of the picture: from the fifth to the 95th percentile, with a dot at the median.
type line struct {
	name   string
	colour color.Color
	took   sample
}

// lines returns the lines of a runtime, from the top. Their samples are those of all passes.
func (r results) lines(runtime int) (lines []line) {
	all := func(of func(runtimeFindings) sample) (took sample) {
		for _, pass := range r.passes {
			took = append(took, of(pass.runtimes[runtime])...)
		}
		return took
	}
	add := func(name string, colour color.Color, of func(runtimeFindings) sample) {
		if took := all(of); len(took) > 0 {
			lines = append(lines, line{name, colour, took})
		}
	}
	for i, c := range warmCommands() {
		at := func(of func(warmCommand) sample) func(runtimeFindings) sample {
			return func(f runtimeFindings) sample {
				if i >= len(f.warm) {
					return nil
				}
				return of(f.warm[i])
			}
		}
		if len(c.argv) == 0 {
			continue
		}
		name := strings.ReplaceAll(c.name, "`", "")
		add(name+", API", apiColour, at(func(c warmCommand) sample { return c.rested }))
		add(name+", API, one after the other", apiColour, at(func(c warmCommand) sample { return c.next }))
		add(name+", API, at once", apiColour, at(func(c warmCommand) sample { return c.atOnce }))
		add(name+", started inside", floorColour, at(func(c warmCommand) sample { return c.floor }))
		add(name+", docker exec", dockerColour, at(func(c warmCommand) sample { return c.docker }))
	}
	add("sandbox exec -- true", apiColour, func(f runtimeFindings) sample { return f.line.sandbox })
	add("docker exec … true", dockerColour, func(f runtimeFindings) sample { return f.line.docker })
	add("a session's commands, API", apiColour, func(f runtimeFindings) sample { return f.typical.api })
	add("a session's commands, docker exec", dockerColour, func(f runtimeFindings) sample { return f.typical.docker })
	add("a session's commands, in a shell", floorColour, func(f runtimeFindings) sample { return f.typical.inside })
	return lines
}

// drawCommands draws the times of commands as SVG, with a panel for each runtime.
func drawCommands(r results) ([]byte, error) {
	const (
		width, perLine = 10 * vg.Inch, vg.Length(17)
		around         = vg.Length(60) // of a panel's lines: its title and its axis
	)
	height := vg.Length(0)
	for i := range r.settings.runtimes {
		height += around + perLine*vg.Length(len(r.lines(i)))
	}
	canvas := vgsvg.NewWith(vgsvg.UseWH(width, height))
	whole := draw.New(canvas)
	top := whole.Max.Y
	for i, runtime := range r.settings.runtimes {
		lines := r.lines(i)
		p, err := drawPanel(runtime, lines)
		if err != nil {
			return nil, fmt.Errorf("cannot draw what commands take: %w", err)
		}
		bottom := top - around - perLine*vg.Length(len(lines))
		p.Draw(draw.Crop(whole, vg.Points(8), -vg.Points(16), bottom-whole.Min.Y, top-whole.Max.Y))
		top = bottom
	}
	var svg bytes.Buffer
	if _, err := canvas.WriteTo(&svg); err != nil {
		return nil, fmt.Errorf("cannot draw what commands take: %w", err)
	}
	// If there is no Liberation Sans, a font with the same metrics is used.
	return bytes.ReplaceAll(svg.Bytes(), []byte("font-family:Liberation Sans;"), []byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif;")), nil
}

func drawPanel(runtime string, lines []line) (*plot.Plot, error) {
	p := newPlot(runtime)
	var all sample
	var names []plot.Tick
	for i, l := range lines {
		y := float64(len(lines) - i)
		names = append(names, plot.Tick{Value: y, Label: l.name + "  " + millis(l.took.median())})
		drawn, err := plotter.NewLine(plotter.XYs{{X: inMillis(l.took.percentile(5)), Y: y}, {X: inMillis(l.took.percentile(95)), Y: y}})
		if err != nil {
			return nil, err
		}
		drawn.LineStyle = draw.LineStyle{Color: l.colour, Width: vg.Points(3)}
		dot, err := plotter.NewScatter(plotter.XYs{{X: inMillis(l.took.median()), Y: y}})
		if err != nil {
			return nil, err
		}
		dot.GlyphStyle = draw.GlyphStyle{Color: l.colour, Radius: vg.Points(5), Shape: draw.CircleGlyph{}}
		p.Add(drawn, dot)
		all = append(all, l.took...)
	}
	p.X.Min, p.X.Max = max(0.1, inMillis(all.percentile(0))/1.2), max(1, inMillis(all.percentile(99))*1.2)
	p.Y.Min, p.Y.Max = 0.3, float64(len(lines))+0.7
	p.Y.Tick.Marker = plot.ConstantTicks(names)
	return p, nil
}

func newPlot(runtime string) *plot.Plot {
	p := plot.New()
	p.Title.Text = "Commands under " + runtime + ": median, and 5th to 95th percentile"
	p.X.Label.Text = "milliseconds (logarithmic)"
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.TickerFunc(logTicks)
	p.Title.Padding, p.X.Padding, p.Y.Padding = vg.Points(4), 0, 0
	for _, style := range []*text.Style{&p.Title.TextStyle, &p.X.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label} {
		style.Font.Variant, style.Font.Size = "Sans", font.Length(10)
	}
	p.Title.TextStyle.Font.Size = 12
	p.Y.Tick.LineStyle.Width = 0
	grid := plotter.NewGrid()
	grid.Horizontal.Color, grid.Vertical.Color = gridColour, gridColour
	p.Add(grid)
	return p
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
