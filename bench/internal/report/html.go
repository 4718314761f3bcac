package report

import (
	_ "embed" // the page
	"errors"
	"html/template"
	"os"
	"path/filepath"

	"github.com/herdgate/herdgate/bench/internal/result"
)

//go:embed report.html.tmpl
var page string

// WriteHTML writes report.html into a folder, which it makes if there is none, and
// returns its path. The page loads nothing from anywhere.
func (r *Run) WriteHTML(dir string) (path string, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	t, err := template.New("report").Parse(page)
	if err != nil {
		return "", err
	}
	sections := make([]section, len(r.Scenarios))
	for i, s := range r.Scenarios {
		if sections[i], err = s.section(); err != nil {
			return "", err
		}
	}
	path = filepath.Join(dir, "report.html")
	f, err := os.Create(path)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return path, t.Execute(f, map[string]any{"Run": r, "Short": r.short(), "Checks": r.checkRows(), "Sections": sections})
}

// section is a scenario on the page.
type section struct {
	Name, About string
	Charts      []chart
	Names       []string
	Rows        []tableRow
	Figures     []string
}

type tableRow struct {
	Variant, Peer string
	Ours          bool
	Values        []string
	Err           string
}

func (s Scenario) section() (section, error) {
	charts, err := s.charts()
	out := section{Name: s.Name, About: capital(s.About) + ".", Charts: charts, Names: result.Names(s.Cells)}
	for _, c := range s.Cells {
		row := tableRow{Variant: c.Variant, Peer: c.Peer, Ours: c.Peer == result.Subject}
		if c.Err != nil {
			row.Err = c.Err.Error()
		} else {
			for _, name := range out.Names {
				row.Values = append(row.Values, value(c, name))
			}
		}
		out.Rows = append(out.Rows, row)
	}
	for _, name := range out.Names {
		out.Figures = append(out.Figures, name+": "+text(name))
	}
	return out, err
}

type checkRow struct {
	Pass                            bool
	Where, Figure, Measured, Wanted string
}

func (r *Run) checkRows() []checkRow {
	var rows []checkRow
	for _, c := range r.Checks {
		rows = append(rows, checkRow{c.Pass, c.Scenario + "/" + c.Variant, c.Figure, result.Format(c.Value), sign(c.Op) + " " + result.Format(c.Want)})
	}
	return rows
}
