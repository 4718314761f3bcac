package prom_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/extra/prom"
)

// metrics are the names of all that a collector exports.
func metrics(t *testing.T) map[string]bool {
	t.Helper()
	c := collector(t, prom.Options{GetDuration: true})
	c.Observe(herdgate.Event{Cache: "product"})
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, family := range families {
		names[family.GetName()] = true
	}
	return names
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestTheDocumentsNameOnlyMetricsThatThereAre(t *testing.T) {
	there := metrics(t)
	name := regexp.MustCompile(`herdgate_\w+`)
	for _, file := range []string{"README.md", "alerts.yml", "alerts_test.yml", "dashboard.json", "../../docs/operations.md"} {
		for _, name := range name.FindAllString(read(t, file), -1) {
			if !there[strings.TrimSuffix(name, "_bucket")] {
				t.Errorf("%s tells of %s, which is no metric", file, name)
			}
		}
	}
}

func TestTheReadmeListsEachMetric(t *testing.T) {
	text := read(t, "README.md")
	for name := range metrics(t) {
		if !strings.Contains(text, "| `"+name+"` |") {
			t.Errorf("README.md does not list %s", name)
		}
	}
}

func TestTheAlertsFireWhenTheyShould(t *testing.T) {
	promtool(t, "check", "rules", "--lint-fatal", "alerts.yml")
	promtool(t, "test", "rules", "alerts_test.yml")
}

// dashboard is what this package relies on of Grafana's form.
type dashboard struct {
	Title  string
	Panels []struct {
		ID      int
		Type    string
		Title   string
		GridPos struct{ X, Y, W, H int }
		Targets []struct{ RefID, Expr, LegendFormat string }
	}
}

func TestTheDashboardAsksWhatPrometheusCanAnswer(t *testing.T) {
	var d dashboard
	if err := json.Unmarshal([]byte(read(t, "dashboard.json")), &d); err != nil {
		t.Fatal(err)
	}
	if d.Title == "" {
		t.Error("it has no title")
	}
	// What Grafana puts in the place of its variables.
	variables := strings.NewReplacer("$__rate_interval", "5m", "$job", "shop", "$cache", "product")
	rules := "groups:\n  - name: dashboard\n    rules:\n"
	ids, cells := map[int]bool{}, map[[2]int]string{}
	for _, p := range d.Panels {
		if ids[p.ID] || p.Title == "" || len(p.Targets) == 0 && p.Type != "row" {
			t.Errorf("the panel %d, %q, is not unlike the others, or has no title or nothing to show", p.ID, p.Title)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := cells[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("the panel %q overlaps %q, or leaves the page, at %d, %d", p.Title, other, x, y)
				}
				cells[[2]int{x, y}] = p.Title
			}
		}
		for _, target := range p.Targets {
			if target.RefID == "" || target.LegendFormat == "" {
				t.Errorf("a query of %q has no id or no legend", p.Title)
			}
			rules += fmt.Sprintf("      - record: panel:%d:%s\n        expr: %q\n", p.ID, strings.ToLower(target.RefID), variables.Replace(target.Expr))
		}
	}
	file := filepath.Join(t.TempDir(), "rules.yml")
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "check", "rules", file)
}

// promtool runs Prometheus's own check.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "promtool", args...).CombinedOutput()
	if err != nil {
		t.Errorf("promtool %s: %v; it comes with Prometheus (make tools installs it)\n%s", strings.Join(args, " "), err, out)
	}
}
