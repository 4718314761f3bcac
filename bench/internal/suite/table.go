package suite

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/herdgate/herdgate/bench/internal/result"
	"github.com/herdgate/herdgate/bench/internal/scenario"
)

// table is what a scenario gave, for people: the medians over the runs.
func table(s scenario.Scenario, cells []result.Cell) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n", s.Name, s.About)
	names := result.Names(cells)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = io.WriteString(w, "variant\tpeer\t"+strings.Join(names, "\t")+"\t\n") // a Builder takes all
	for _, c := range cells {
		if len(c.Runs) > 0 {
			_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t\n", c.Variant, c.Peer, strings.Join(values(names, c.Median()), "\t"))
		}
	}
	_ = w.Flush()
	for _, c := range cells {
		if c.Err != nil {
			fmt.Fprintf(&b, "not measured: %v\n", c.Err)
		}
	}
	return b.String() + "\n"
}

func values(names []string, figures result.Figures) []string {
	var all []string
	for _, name := range names {
		v, ok := figures[name]
		if !ok {
			all = append(all, "")
			continue
		}
		all = append(all, result.Format(v))
	}
	return all
}
