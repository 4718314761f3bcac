package report

import (
	"bytes"
	"fmt"
	"html/template"
	"image/color"
	"math"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/herdgate/herdgate/bench/internal/result"
)

// chart is a picture with what it shows.
type chart struct {
	Title, Text string
	SVG         template.HTML
}

// bars asks for a chart of one figure: a bar for each peer and variant.
type bars struct {
	Scenario, Figure, Title, Text string
	Log                           bool
}

func allBars() []bars {
	return []bars{
		{"local", "ns_op", "Time of a local hit", "ns; shorter is better. The scale is logarithmic.", true},
		{"remote", "x_raw", "Remote hits a second", "by those of plain GET and decode in the same rounds; longer is better.", false},
		{"stampede", "loads", "Loads of one cold key", "1 600 callers of 8 processes ask at once. The scale is logarithmic.", true},
		{"stampede", "commands", "Commands that the server ran for it", "those inside scripts included; shorter is better. The scale is logarithmic.", true},
		{"expiry", "loads_per_expiry", "Loads of a hot key each time it expires", "1 is what is needed. The scale is logarithmic.", true},
		{"expiry", "waited_pct", "Callers that waited for a load of the hot key", "%; shorter is better.", false},
		{"wave", "peak_loads", "Loads within 100 ms when 10 000 keys expire together", "shorter is better.", false},
		{"redisdown", "throughput_ratio", "Throughput while Redis is down", "by that before; longer is better.", false},
		{"redisdown", "error_pct", "Calls that failed from the kill on", "%; shorter is better.", false},
		{"delrace", "stale_reads", "Reads of a deleted value", "of 30, after a delete during a load; none is right.", false},
		{"holderdeath", "takeover_ms", "From the death of the loading process to the next load", "ms; 0 where another process loaded all the time, since nothing is shared.", false},
	}
}

func (s Scenario) charts() ([]chart, error) {
	var all []chart
	for _, b := range allBars() {
		if b.Scenario != s.Name {
			continue
		}
		p, rows := b.plot(s.Cells)
		if rows == 0 {
			continue
		}
		c, err := draws(p, b.Title, b.Text, vg.Length(60+20*rows))
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	more, err := s.curves()
	if err != nil {
		return nil, err
	}
	growth, err := s.growth()
	return slices.Concat(all, more, growth), err
}

const chartWidth vg.Length = 640

// series are the colors of variants, or of peers in charts of lines.
func seriesColor(i int) color.NRGBA {
	colors := [...]color.NRGBA{
		{R: 0x0b, G: 0x7a, B: 0x75, A: 0xff},
		{R: 0xe0, G: 0x8e, B: 0x2b, A: 0xff},
		{R: 0x7a, G: 0x5c, B: 0xa8, A: 0xff},
		{R: 0xc8, G: 0x3e, B: 0x4d, A: 0xff},
		{R: 0x3b, G: 0x6f, B: 0xb6, A: 0xff},
		{R: 0x6b, G: 0x8e, B: 0x23, A: 0xff},
		{R: 0x8d, G: 0x6e, B: 0x63, A: 0xff},
		{R: 0x55, G: 0x55, B: 0x55, A: 0xff},
	}
	return colors[i%len(colors)]
}

// plot draws a group of bars for each peer, a bar for each variant. rows is how many
// bars there is room for.
func (b bars) plot(cells []result.Cell) (p *plot.Plot, rows int) {
	var peers, variants []string
	values := map[[2]string]float64{}
	for _, c := range cells {
		v, ok := c.Median()[b.Figure]
		if !ok {
			continue
		}
		if !slices.Contains(peers, c.Peer) {
			peers = append(peers, c.Peer)
		}
		if !slices.Contains(variants, c.Variant) {
			variants = append(variants, c.Variant)
		}
		values[[2]string{c.Peer, c.Variant}] = v
	}
	slices.Reverse(peers) // the first is drawn on top
	p = newPlot("", "")
	var labels plotter.XYLabels
	for i, variant := range variants {
		var bar boxes
		for row, peer := range peers {
			v, ok := values[[2]string{peer, variant}]
			if !ok {
				continue
			}
			// Of a group, the first variant is on top.
			at := float64(row) + 0.4 - 0.8*(float64(i)+0.5)/float64(len(variants))
			bar.boxes = append(bar.boxes, box{y: at, half: 0.36 / float64(len(variants)), to: v})
			labels.XYs = append(labels.XYs, plotter.XY{X: v, Y: at})
			labels.Labels = append(labels.Labels, " "+result.Format(v))
		}
		bar.color = seriesColor(i)
		p.Add(&bar)
		p.Legend.Add(variant, &bar)
	}
	b.axes(p, peers, labels.XYs)
	for i := range labels.XYs {
		labels.XYs[i].X = max(labels.XYs[i].X, p.X.Min)
	}
	if text, err := plotter.NewLabels(labels); err == nil { // it fails only for points without labels
		for i := range text.TextStyle {
			text.TextStyle[i].Font = sans(10)
			text.TextStyle[i].YAlign = -0.4
		}
		p.Add(text)
	}
	return p, len(peers) * max(1, len(variants))
}

func (b bars) axes(p *plot.Plot, peers []string, points plotter.XYs) {
	var ticks []plot.Tick
	for row, peer := range peers {
		ticks = append(ticks, plot.Tick{Value: float64(row), Label: peer})
	}
	p.Y.Tick.Marker = plot.ConstantTicks(ticks)
	p.Y.Min, p.Y.Max = -0.5, float64(len(peers))-0.5
	p.Legend.Top, p.Legend.Left = false, false
	most, least := 0.0, math.Inf(1)
	for _, at := range points {
		most = max(most, at.X)
		if at.X > 0 {
			least = min(least, at.X)
		}
	}
	if most == 0 {
		most, least = 1, 1
	}
	p.X.Min, p.X.Max = 0, most*1.25 // room for numbers and legend
	if b.Log {
		lowest := math.Pow(10, math.Floor(math.Log10(least*0.9)))
		p.X.Scale = plot.LogScale{}
		p.X.Tick.Marker = plot.ConstantTicks(powers(lowest, most*10))
		p.X.Min, p.X.Max = lowest, most*math.Pow(most/lowest, 0.25)
	}
}

// powers are ticks at the powers of ten.
func powers(from, to float64) []plot.Tick {
	var ticks []plot.Tick
	for v := from; v <= to*1.001; v *= 10 {
		ticks = append(ticks, plot.Tick{Value: v, Label: strconv.FormatFloat(v, 'g', 3, 64)})
	}
	return ticks
}

// boxes are horizontal bars from the axis; plotter's own start at 0, which a
// logarithmic scale does not have.
type boxes struct {
	boxes []box
	color color.Color
}

type box struct{ y, half, to float64 }

// Plot implements plot.Plotter.
func (b *boxes) Plot(c draw.Canvas, p *plot.Plot) {
	toX, toY := p.Transforms(&c)
	for _, one := range b.boxes {
		from, to := toX(p.X.Min), toX(max(one.to, p.X.Min))
		low, high := toY(one.y-one.half), toY(one.y+one.half)
		c.FillPolygon(b.color, []vg.Point{{X: from, Y: low}, {X: to, Y: low}, {X: to, Y: high}, {X: from, Y: high}})
	}
}

// Thumbnail implements plot.Thumbnailer.
func (b *boxes) Thumbnail(c *draw.Canvas) {
	c.FillPolygon(b.color, []vg.Point{{X: c.Min.X, Y: c.Min.Y}, {X: c.Max.X, Y: c.Min.Y}, {X: c.Max.X, Y: c.Max.Y}, {X: c.Min.X, Y: c.Max.Y}})
}

// curves draws the latencies of the variants that have them.
func (s Scenario) curves() ([]chart, error) {
	var charts []chart
	for _, variant := range variantsOf(s.Cells) {
		p := newPlot("share of the calls", "answered within")
		lines := 0
		for _, c := range s.Cells {
			if c.Variant != variant || len(c.Runs) == 0 || c.Runs[0].Curve == nil {
				continue
			}
			var points plotter.XYs
			for _, at := range c.Runs[0].Curve {
				points = append(points, plotter.XY{X: -math.Log10(max(1-at.Q, 1e-5)), Y: max(0.1, at.US)})
			}
			if err := addLine(p, c.Peer, lines, points); err != nil {
				return nil, err
			}
			lines++
		}
		if lines == 0 {
			continue
		}
		shares := []plot.Tick{{Value: math.Log10(2), Label: "50 %"}}
		for nines, label := range []string{"90 %", "99 %", "99.9 %", "99.99 %", "all"} {
			shares = append(shares, plot.Tick{Value: float64(nines + 1), Label: label})
		}
		p.X.Tick.Marker = plot.ConstantTicks(shares)
		p.X.Min, p.X.Max = 0, 5
		logY(p, func(v float64) string { return duration(v) })
		c, err := draws(p, s.Name+"/"+variant+": how long the calls took", "At 99 % stands the time within which 99 of 100 calls were answered. Both scales are logarithmic. The first run of each peer.", 300)
		if err != nil {
			return nil, err
		}
		charts = append(charts, c)
	}
	return charts, nil
}

func duration(us float64) string {
	switch {
	case us < 1:
		return fmt.Sprintf("%g ns", us*1000)
	case us < 1000:
		return fmt.Sprintf("%g µs", us)
	case us < 1e6:
		return fmt.Sprintf("%g ms", us/1000)
	}
	return fmt.Sprintf("%g s", us/1e6)
}

// growth draws how figures grow with the number of instances.
func (s Scenario) growth() ([]chart, error) {
	var charts []chart
	for _, g := range []struct{ figure, title string }{
		{"calls_per_expiry", "Commands for each TTL of one hot key"},
		{"loads_per_expiry", "Loads for each TTL of one hot key"},
		{"p99_ms", "Delay of a cold key's callers beyond the load, 99 %, in ms"},
	} {
		p := newPlot("instances", "")
		lines := 0
		for _, name := range peersOf(s.Cells) {
			var points plotter.XYs
			for _, c := range s.Cells {
				figures := c.Median()
				if n, ok := figures["instances"]; ok && c.Peer == name {
					points = append(points, plotter.XY{X: n, Y: max(figures[g.figure], 0.01)})
				}
			}
			if len(points) < 2 {
				continue
			}
			if err := addLine(p, name, lines, points); err != nil {
				return nil, err
			}
			lines++
		}
		if lines == 0 {
			continue
		}
		p.X.Scale = plot.LogScale{}
		p.X.Tick.Marker = plot.ConstantTicks(powers(1, 10_000))
		logY(p, func(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) })
		c, err := draws(p, g.title, "As the fleet grows. Both scales are logarithmic.", 280)
		if err != nil {
			return nil, err
		}
		charts = append(charts, c)
	}
	return charts, nil
}

// logY gives the Y axis whole powers of ten.
func logY(p *plot.Plot, label func(float64) string) {
	low, high := math.Pow(10, math.Floor(math.Log10(p.Y.Min))), math.Pow(10, math.Ceil(math.Log10(p.Y.Max*1.01)))
	var ticks plot.ConstantTicks
	for v := low; v <= high*1.001; v *= 10 {
		ticks = append(ticks, plot.Tick{Value: v, Label: label(v)})
	}
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, ticks
	p.Y.Min, p.Y.Max = low, high
}

func variantsOf(cells []result.Cell) []string {
	return distinct(cells, func(c result.Cell) string { return c.Variant })
}

func peersOf(cells []result.Cell) []string {
	return distinct(cells, func(c result.Cell) string { return c.Peer })
}

func distinct(cells []result.Cell, of func(result.Cell) string) []string {
	var all []string
	for _, c := range cells {
		if v := of(c); !slices.Contains(all, v) {
			all = append(all, v)
		}
	}
	return all
}

func sans(size vg.Length) font.Font {
	return font.Font{Typeface: "Liberation", Variant: "Sans", Size: size}
}

func newPlot(x, y string) *plot.Plot {
	p := plot.New()
	p.X.Label.Text, p.Y.Label.Text = x, y
	p.X.Label.TextStyle.Font, p.Y.Label.TextStyle.Font = sans(11), sans(11)
	p.X.Tick.Label.Font, p.Y.Tick.Label.Font = sans(11), sans(11)
	p.Legend.TextStyle.Font = sans(11)
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.Padding = 2
	p.Legend.XOffs = 8
	grid := plotter.NewGrid()
	grid.Vertical.Color = color.Gray{Y: 0xe4}
	grid.Horizontal.Color = color.Gray{Y: 0xe4}
	p.Add(grid)
	return p
}

func addLine(p *plot.Plot, name string, i int, points plotter.XYs) error {
	line, err := plotter.NewLine(points)
	if err != nil {
		return err
	}
	line.Color = seriesColor(i)
	line.Width = 1.4
	if name == result.Subject {
		line.Width = 2.6
	}
	p.Add(line)
	p.Legend.Add(name, line)
	return nil
}

// draws makes an element for an HTML page of a plot.
func draws(p *plot.Plot, title, text string, height vg.Length) (chart, error) {
	canvas := vgsvg.New(chartWidth, height)
	p.Draw(draw.New(canvas))
	var buf bytes.Buffer
	if _, err := canvas.WriteTo(&buf); err != nil {
		return chart{}, err
	}
	_, element, _ := strings.Cut(buf.String(), "<svg") // without the XML prolog
	// Arial and its kin have the same widths, where Liberation is not installed.
	element = strings.ReplaceAll(element, "font-family:Liberation Sans", "font-family:Liberation Sans,Arial,Helvetica,sans-serif")
	return chart{Title: title, Text: text, SVG: template.HTML("<svg" + element)}, nil
}
