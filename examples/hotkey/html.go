package main

import (
	_ "embed" // the page
	"errors"
	"fmt"
	"html/template"
	"os"
)

//go:embed report.html.tmpl
var page string

// chart is a picture with what it shows.
type chart struct {
	Title string
	Text  string
	SVG   template.HTML
}

// writeHTML writes the report as one page that loads nothing from anywhere.
func (r report) writeHTML(c config) (err error) {
	charts, err := r.charts(c)
	if err != nil {
		return err
	}
	t, err := template.New("report").Parse(page)
	if err != nil {
		return err
	}
	file, err := os.Create(c.out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return t.Execute(file, map[string]any{
		"Setting": c.setting(),
		"Phases":  r.Phases,
		"Charts":  charts,
		"Rows":    r.rows(),
	})
}

func (c config) setting() string {
	return fmt.Sprintf("%d processes with %d callers each read from 10 000 products, 61 %% of the time the same one, and pause for %v between two reads. "+
		"A cached product is fresh for %v; the query that loads one takes %v. Each phase was measured for %v after a warm-up.",
		c.instances, c.callers, pause, c.ttl, c.load, c.duration)
}
