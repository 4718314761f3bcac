package report

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/herdgate/herdgate/bench/internal/result"
)

// WriteMarkdown writes the tables into a file.
func (r *Run) WriteMarkdown(file string) (err error) {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = io.WriteString(f, r.markdown())
	return err
}

func (r *Run) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Results\n\nWritten by the suite itself; [README.md](README.md) tells what the scenarios and figures are.\n\n")
	fmt.Fprintf(&b, "- Command: `go -C bench run . %s`\n- Date: %s; it took %v\n- Machine: %s; load average before the run: %s\n",
		r.Command, r.Began.UTC().Format("2006-01-02 15:04 MST"), r.Took.Round(time.Second), r.Machine, r.Load)
	fmt.Fprintf(&b, "- Versions: %s\n- %s\n- Left out, as their modules cannot be had: %s\n", strings.Join(r.Tools, ", "), r.Medians(), strings.Join(r.LeftOut, ", "))
	r.writeShort(&b)
	r.writeChecks(&b)
	for _, s := range r.Scenarios {
		s.write(&b)
	}
	if len(r.Skipped) > 0 {
		b.WriteString("\n## Not run\n\n")
		for _, line := range r.Skipped {
			fmt.Fprintf(&b, "- %s\n", line)
		}
	}
	return b.String()
}

func (r *Run) writeShort(b *strings.Builder) {
	rows := r.short()
	if len(rows) == 0 {
		return
	}
	b.WriteString("\n## In short\n\n| what | herdgate | best other | plain cache-aside |\n|---|---|---|---|\n")
	for _, row := range rows {
		best := row.Best
		if row.Peer != "" {
			best += " (" + row.Peer + ")"
		}
		fmt.Fprintf(b, "| %s | **%s** | %s | %s |\n", row.Text, row.Ours, best, row.Aside)
	}
}

func (r *Run) writeChecks(b *strings.Builder) {
	if len(r.Checks) == 0 {
		return
	}
	missed := 0
	for _, c := range r.Checks {
		if !c.Pass {
			missed++
		}
	}
	fmt.Fprintf(b, "\n## Targets\n\n%d of %d reached.\n\n| | scenario | figure | measured | wanted |\n|---|---|---|---|---|\n", len(r.Checks)-missed, len(r.Checks))
	for _, c := range r.Checks {
		verdict := "pass"
		if !c.Pass {
			verdict = "**missed**"
		}
		fmt.Fprintf(b, "| %s | %s/%s | %s | %s | %s %s |\n", verdict, c.Scenario, c.Variant, c.Figure, result.Format(c.Value), sign(c.Op), result.Format(c.Want))
	}
}

func sign(op string) string {
	return map[string]string{"<=": "≤", ">=": "≥", "=": "="}[op]
}

func (s Scenario) write(b *strings.Builder) {
	fmt.Fprintf(b, "\n## %s\n\n%s.\n\n", s.Name, capital(s.About))
	names := result.Names(s.Cells)
	fmt.Fprintf(b, "| variant | peer | %s |\n|---|---|%s\n", strings.Join(names, " | "), strings.Repeat("---|", len(names)))
	for _, c := range s.Cells {
		if c.Err != nil {
			fmt.Fprintf(b, "| %s | %s | not measured: %s |\n", c.Variant, c.Peer, strings.ReplaceAll(c.Err.Error(), "\n", " "))
			continue
		}
		fmt.Fprintf(b, "| %s | %s |", c.Variant, c.Peer)
		for _, name := range names {
			fmt.Fprintf(b, " %s |", value(c, name))
		}
		b.WriteString("\n")
	}
	b.WriteString("\n")
	for _, name := range names {
		fmt.Fprintf(b, "- `%s`: %s\n", name, text(name))
	}
}

func capital(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}
