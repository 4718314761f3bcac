package herdgate_test

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"testing"

	"github.com/herdgate/herdgate"
)

func TestTheOperationsPageExplainsEachCount(t *testing.T) {
	text, err := os.ReadFile("docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([A-Z][a-z][A-Za-z]*)` \\| [^|]+ \\|").FindAllStringSubmatch(string(text), -1) {
		listed = append(listed, row[1])
	}
	var fields []string
	for field := range reflect.TypeFor[herdgate.Stats]().Fields() {
		fields = append(fields, field.Name)
	}
	if !slices.Equal(listed, fields) {
		t.Errorf("the page explains\n%q\nStats has\n%q", listed, fields)
	}
}

func TestTheOperationsPageHasEachErrorThatIsTested(t *testing.T) {
	text, err := os.ReadFile("docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	for code := range troubles() {
		if !regexp.MustCompile("(?m)^\\| [^|]*`" + code + "`").Match(text) {
			t.Errorf("the page does not say what becomes of %s", code)
		}
	}
}

func TestEachAlertOfTheOperationsPageExists(t *testing.T) {
	page, err := os.ReadFile("docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	rules, err := os.ReadFile("extra/prom/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	var there []string
	for _, rule := range regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(string(rules), -1) {
		there = append(there, rule[1])
	}
	named := regexp.MustCompile(`\bHerdgate[A-Z]\w+`).FindAllString(string(page), -1)
	for _, alert := range there {
		if !slices.Contains(named, alert) {
			t.Errorf("the page names no count for %s", alert)
		}
	}
	for _, alert := range named {
		if !slices.Contains(there, alert) {
			t.Errorf("there is no alert %s", alert)
		}
	}
}
