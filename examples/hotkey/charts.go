package main

import (
	"bytes"
	"fmt"
	"html/template"
	"image/color"
	"math"
	"strconv"
	"strings"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

const (
	chartWidth  vg.Length = 640
	chartHeight vg.Length = 250
)

func phaseColor(i int) color.NRGBA {
	return [...]color.NRGBA{{R: 0xc8, G: 0x3e, B: 0x4d, A: 0xff}, {R: 0x0b, G: 0x7a, B: 0x75, A: 0xff}}[i%2]
}

// tint is a color mixed with three parts of white.
func tint(c color.NRGBA) color.NRGBA {
	light := func(v uint8) uint8 { return 0xff - (0xff-v)/4 }
	return color.NRGBA{R: light(c.R), G: light(c.G), B: light(c.B), A: c.A}
}

func (r report) charts(c config) ([]chart, error) {
	charts := []chart{
		{
			Title: "Database queries over time",
			Text:  fmt.Sprintf("All queries that began within each %v. A peak is a herd: every read that finds nothing in Redis sends a query.", slotWidth),
		},
		{
			Title: "Queries for the hot key, added up",
			Text:  "How many queries for this one product there have been since the start. The scale is logarithmic: each line upwards is ten times as many.",
		},
		{
			Title: "How long the reads of the hot key took",
			Text:  "At 99 % stands the time within which 99 of 100 reads were answered; further right are the slowest. Both scales are logarithmic.",
		},
	}
	for i, newChart := range []func(config) (*plot.Plot, error){r.queriesOverTime, r.hotQueriesAddedUp, r.latencies} {
		p, err := newChart(c)
		if err != nil {
			return nil, err
		}
		if charts[i].SVG, err = svg(p); err != nil {
			return nil, err
		}
	}
	return charts, nil
}

func (r report) queriesOverTime(c config) (*plot.Plot, error) {
	p := newPlot("seconds", fmt.Sprintf("queries in %v", slotWidth))
	p.X.Tick.Marker = seconds(c.duration)
	p.Y.Min = 0
	for i, phase := range r.Phases {
		var points plotter.XYs
		for slot, n := range phase.result.Queries {
			points = append(points, plotter.XY{X: slotStart(slot), Y: float64(n)})
		}
		line, err := addLine(p, phase.Name, i, points)
		if err != nil {
			return nil, err
		}
		line.FillColor = tint(phaseColor(i))
	}
	p.Y.Max *= 1.25 // room for the legend
	return p, nil
}

func (r report) hotQueriesAddedUp(c config) (*plot.Plot, error) {
	p := newPlot("seconds", "queries since the start")
	p.X.Tick.Marker = seconds(c.duration)
	most := int64(1)
	for i, phase := range r.Phases {
		var sum int64
		var points plotter.XYs
		for slot, n := range phase.result.HotQueries {
			if sum += n; sum > 0 { // zero is nowhere on a logarithmic scale
				points = append(points, plotter.XY{X: slotStart(slot), Y: float64(sum)})
			}
		}
		if len(points) == 0 {
			continue
		}
		points = append(points, plotter.XY{X: slotStart(len(phase.result.HotQueries)), Y: float64(sum)})
		line, err := addLine(p, phase.Name, i, points)
		if err != nil {
			return nil, err
		}
		line.StepStyle = plotter.PostStep
		most = max(most, sum)
	}
	var ticks []plot.Tick
	for n := int64(1); n < 10*most; n *= 10 {
		ticks = append(ticks, plot.Tick{Value: float64(n), Label: strconv.FormatInt(n, 10)})
	}
	p.X.Min = 0
	logarithmic(&p.Y, ticks)
	return p, nil
}

func (r report) latencies(c config) (*plot.Plot, error) {
	p := newPlot("share of the reads", "answered within")
	far := 1.0 // of the X axis, which is -log10 of the share of slower reads
	for i, phase := range r.Phases {
		latency := &phase.result.Tally.Hot.Latency
		last := math.Log10(max(2, float64(phase.Hot.Requests)))
		var points plotter.XYs
		for x := 0.0; x < last; x += 0.02 {
			took := latency.quantile(1 - math.Pow(10, -x))
			points = append(points, plotter.XY{X: x, Y: max(1, float64(took))})
		}
		if _, err := addLine(p, phase.Name, i, points); err != nil {
			return nil, err
		}
		far = max(far, last)
	}
	query, err := plotter.NewLine(plotter.XYs{{X: 0, Y: float64(c.load)}, {X: far, Y: float64(c.load)}})
	if err != nil {
		return nil, err
	}
	query.Color = color.Gray{Y: 0x80}
	query.Dashes = []vg.Length{4, 4}
	p.Add(query)
	p.Legend.Add("one query", query)

	var shares []plot.Tick
	for x, label := range []string{"", "90 %", "99 %", "99.9 %", "99.99 %", "99.999 %"} {
		if float64(x) <= far && x > 0 {
			shares = append(shares, plot.Tick{Value: float64(x), Label: label})
		}
	}
	shares = append(shares, plot.Tick{Value: math.Log10(2), Label: "50 %"})
	p.X.Tick.Marker = plot.ConstantTicks(shares)
	p.X.Min, p.X.Max = 0, far
	var times []plot.Tick
	for d := 100 * time.Nanosecond; float64(d) < 10*p.Y.Max; d *= 10 {
		times = append(times, plot.Tick{Value: float64(d), Label: timeLabel(d)})
	}
	logarithmic(&p.Y, times)
	return p, nil
}

func timeLabel(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%g µs", float64(d)/float64(time.Microsecond))
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%g s", d.Seconds())
}

// seconds marks about ten whole seconds.
func seconds(d time.Duration) plot.ConstantTicks {
	var ticks plot.ConstantTicks
	step := max(1, int(d.Seconds())/10)
	for s := 0; s <= int(d.Seconds()); s += step {
		ticks = append(ticks, plot.Tick{Value: float64(s), Label: strconv.Itoa(s)})
	}
	return ticks
}

func slotStart(slot int) float64 { return (time.Duration(slot) * slotWidth).Seconds() }

// logarithmic gives an axis a logarithmic scale from its first to its last tick.
func logarithmic(a *plot.Axis, ticks []plot.Tick) {
	a.Scale = plot.LogScale{}
	a.Tick.Marker = plot.ConstantTicks(ticks)
	a.Min, a.Max = ticks[0].Value, ticks[len(ticks)-1].Value
}

func newPlot(x, y string) *plot.Plot {
	p := plot.New()
	sans := font.Font{Typeface: "Liberation", Variant: "Sans", Size: 10}
	p.X.Label.Text, p.Y.Label.Text = x, y
	p.X.Label.TextStyle.Font, p.Y.Label.TextStyle.Font = sans, sans
	p.X.Tick.Label.Font, p.Y.Tick.Label.Font = sans, sans
	p.Legend.TextStyle.Font = sans
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.Padding = 3
	p.Legend.XOffs = 8
	grid := plotter.NewGrid()
	grid.Vertical.Color = color.Gray{Y: 0xe4}
	grid.Horizontal.Color = color.Gray{Y: 0xe4}
	p.Add(grid)
	return p
}

func addLine(p *plot.Plot, name string, phase int, points plotter.XYs) (*plotter.Line, error) {
	line, err := plotter.NewLine(points)
	if err != nil {
		return nil, err
	}
	line.Color = phaseColor(phase)
	line.Width = 1.6
	p.Add(line)
	p.Legend.Add(name, line)
	return line, nil
}

// svg draws a plot as an element for an HTML page.
func svg(p *plot.Plot) (template.HTML, error) {
	canvas := vgsvg.New(chartWidth, chartHeight)
	p.Draw(draw.New(canvas))
	var buf bytes.Buffer
	if _, err := canvas.WriteTo(&buf); err != nil {
		return "", err
	}
	_, element, _ := strings.Cut(buf.String(), "<svg") // without the XML prolog
	// Arial and its kin have the same widths, where Liberation is not installed.
	element = strings.ReplaceAll(element, "font-family:Liberation Sans", "font-family:Liberation Sans,Arial,Helvetica,sans-serif")
	return template.HTML("<svg" + element), nil
}
