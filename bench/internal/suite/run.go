package suite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/herdgate/herdgate/bench/internal/peer"
	"github.com/herdgate/herdgate/bench/internal/report"
	"github.com/herdgate/herdgate/bench/internal/result"
	"github.com/herdgate/herdgate/bench/internal/scenario"
)

// Run does what the arguments ask for. Tables, or with -json objects, go to stdout,
// progress and the reasons of what is missing to stderr. The error is also for a
// measurement that failed and, with -check, for a target that was missed.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	c, err := parse(args, stderr)
	if err != nil {
		return err
	}
	return c.run(ctx, args, stdout, stderr)
}

func (c *config) run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	stderr = &lockedWriter{w: stderr}
	p := &progress{w: stderr, began: time.Now(), total: c.count()}
	r := &report.Run{Command: strings.Join(args, " "), Began: p.began, Runs: c.runs, LeftOut: peer.LeftOut()}
	r.Describe(ctx)
	for _, s := range c.scenarios {
		cells := c.measure(ctx, s, p, stderr)
		if err := c.print(stdout, s, cells); err != nil {
			return err
		}
		r.Scenarios = append(r.Scenarios, report.Scenario{Name: s.Name, About: s.About, Cells: cells})
	}
	r.Took, r.Skipped = time.Since(p.began), p.skipped
	return c.conclude(ctx, r, stdout, stderr)
}

// fits calls do for each variant of a scenario by each peer that can run it.
func (c *config) fits(s scenario.Scenario, do func(k peer.Kind, variant string), not func(k peer.Kind, variant, why string)) {
	for _, variant := range c.variantsOf(s) {
		for _, k := range c.peers {
			if why := s.Unfit(k.Tiers, variant); why != "" {
				not(k, variant, why)
				continue
			}
			do(k, variant)
		}
	}
}

// count is the number of measurements to be made.
func (c *config) count() int {
	n := 0
	for _, s := range c.scenarios {
		c.fits(s, func(peer.Kind, string) { n += c.runs }, func(peer.Kind, string, string) {})
	}
	return n
}

// measure runs a scenario: all peers in turn and then again, so that what drifts on
// the machine drifts for all.
func (c *config) measure(ctx context.Context, s scenario.Scenario, p *progress, stderr io.Writer) []result.Cell {
	var cells []result.Cell
	var kinds []peer.Kind
	c.fits(s, func(k peer.Kind, variant string) {
		cells = append(cells, result.Cell{Scenario: s.Name, Peer: k.Name, Variant: variant})
		kinds = append(kinds, k)
	}, func(k peer.Kind, variant, why string) {
		p.skip("%s/%s: %s is skipped: %s", s.Name, variant, k.Name, why)
	})
	env := scenario.Env{Options: c.options, Stderr: stderr}
	for run := range c.runs {
		figures := map[string]map[string]result.Figures{} // by peer and variant
		for i := range cells {
			cell := &cells[i]
			if cell.Err != nil || ctx.Err() != nil {
				p.done++
				continue
			}
			p.begin("%s/%s %s, run %d of %d", s.Name, cell.Variant, cell.Peer, run+1, c.runs)
			m, err := runOne(ctx, s, env, kinds[i], cell.Variant)
			if err != nil {
				cell.Err = fmt.Errorf("%s/%s %s: %w", s.Name, cell.Variant, cell.Peer, err)
				p.say("%v", cell.Err)
				continue
			}
			cell.Runs = append(cell.Runs, m)
			if figures[cell.Peer] == nil {
				figures[cell.Peer] = map[string]result.Figures{}
			}
			figures[cell.Peer][cell.Variant] = m.Figures
		}
		if s.Compare != nil {
			for _, variants := range figures {
				s.Compare(variants)
			}
		}
	}
	return cells
}

func runOne(ctx context.Context, s scenario.Scenario, env scenario.Env, k peer.Kind, variant string) (result.Measured, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.Limit, fmt.Errorf("it took longer than %v", s.Limit))
	defer cancel()
	return s.Run(ctx, env, k, variant)
}

// print writes what a scenario gave.
func (c *config) print(stdout io.Writer, s scenario.Scenario, cells []result.Cell) error {
	if !c.json {
		_, err := io.WriteString(stdout, table(s, cells))
		return err
	}
	for _, cell := range cells {
		if len(cell.Runs) > 0 {
			if err := result.WriteJSON(stdout, cell); err != nil {
				return err
			}
		}
	}
	return nil
}

// conclude writes the reports, checks, and says what went wrong.
func (c *config) conclude(ctx context.Context, r *report.Run, stdout, stderr io.Writer) error {
	var cells []result.Cell
	failed := 0
	for _, s := range r.Scenarios {
		for _, cell := range s.Cells {
			if cell.Err != nil {
				failed++
			}
			cells = append(cells, cell)
		}
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	var errs []error
	if failed > 0 {
		errs = append(errs, fmt.Errorf("%d of %d variants could not be measured; the reasons are above", failed, len(cells)))
	}
	r.Checks = result.Check(cells)
	errs = append(errs, c.writeReports(r, stderr))
	if c.check {
		to := stdout
		if c.json {
			to = stderr // standard output is for programs
		}
		missed, err := result.WriteChecks(to, r.Checks)
		errs = append(errs, err)
		if missed > 0 {
			errs = append(errs, fmt.Errorf("%d of %d targets were missed", missed, len(r.Checks)))
		}
	}
	return errors.Join(errs...)
}

func (c *config) writeReports(r *report.Run, stderr io.Writer) error {
	if c.results != "" {
		if err := r.WriteMarkdown(c.results); err != nil {
			return fmt.Errorf("-results: %w", err)
		}
		_, _ = fmt.Fprintf(stderr, "wrote %s\n", c.results)
	}
	if c.out != "" {
		path, err := r.WriteHTML(c.out)
		if err != nil {
			return fmt.Errorf("-out: %w", err)
		}
		_, _ = fmt.Fprintf(stderr, "wrote %s\n", path)
	}
	return nil
}

// lockedWriter lets all processes that are started write to one writer.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer // protected by mu
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// progress writes a line for each measurement that begins.
type progress struct {
	w           io.Writer
	began       time.Time
	done, total int
	skipped     []string
}

func (p *progress) begin(format string, args ...any) {
	p.done++
	p.say("[%d/%d] "+format, append([]any{p.done, p.total}, args...)...)
}

// skip tells what is not measured, once more in the reports.
func (p *progress) skip(format string, args ...any) {
	p.skipped = append(p.skipped, fmt.Sprintf(format, args...))
	p.say(format, args...)
}

func (p *progress) say(format string, args ...any) {
	at := time.Since(p.began).Round(time.Second)
	_, _ = fmt.Fprintf(p.w, "%6s  "+format+"\n", append([]any{at}, args...)...)
}
