package herdgate_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// document is a Markdown file, taken apart.
type document struct {
	blocks    []string // of code, each with the language after its fence
	tableRows int
	links     []string // to files, as they are written
}

var (
	link     = regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
	codeSpan = regexp.MustCompile("`[^`]*`")
)

func readDocument(t *testing.T, path string) document {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var d document
	var block []string
	fenced := false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		switch fence := strings.HasPrefix(line, "```"); {
		case fence && fenced:
			d.blocks = append(d.blocks, strings.Join(block, "\n"))
			fenced = false
		case fence:
			fenced, block = true, []string{strings.TrimPrefix(line, "```")}
		case fenced:
			block = append(block, line)
		case strings.HasPrefix(line, "|"):
			d.tableRows++
		}
		if !fenced {
			for _, m := range link.FindAllStringSubmatch(codeSpan.ReplaceAllString(line, ""), -1) {
				d.links = append(d.links, m[1])
			}
		}
	}
	if fenced {
		t.Errorf("%s: a block of code does not end", path)
	}
	return d
}

// flat is code without its indentation, so that it can be found at another depth.
func flat(code string) string {
	var b strings.Builder
	for line := range strings.Lines(code) {
		b.WriteString(strings.TrimSpace(line) + "\n")
	}
	return b.String()
}

func TestTheCodeOfTheGuidesIsThatOfTheExamples(t *testing.T) {
	var examples strings.Builder
	for _, pattern := range []string{"*example*_test.go", "*/*example*_test.go", "*/*/*example*_test.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			examples.WriteString(flat(string(text)))
		}
	}
	for _, block := range append(readDocument(t, "docs/guide.md").blocks, readDocument(t, "docs/locks.md").blocks...) {
		language, code, _ := strings.Cut(block, "\n")
		if language != "go" {
			continue
		}
		if !strings.Contains(examples.String(), "\n"+flat(code)) {
			t.Errorf("no example has these lines, one after the other:\n%s", code)
		}
	}
}

func TestBothReadmesHaveTheSameCodeAndTables(t *testing.T) {
	english, chinese := readDocument(t, "README.md"), readDocument(t, "README.zh-CN.md")
	for i, block := range english.blocks {
		if i >= len(chinese.blocks) || chinese.blocks[i] != block {
			t.Fatalf("block %d of README.md is not that of README.zh-CN.md:\n%s", i+1, block)
		}
	}
	if a, b := len(english.blocks), len(chinese.blocks); a != b {
		t.Errorf("README.md has %d blocks of code, README.zh-CN.md has %d", a, b)
	}
	if a, b := english.tableRows, chinese.tableRows; a != b {
		t.Errorf("README.md has %d rows of tables, README.zh-CN.md has %d", a, b)
	}
	other := func(links []string) []string {
		return slices.DeleteFunc(slices.Clone(links), func(l string) bool { return strings.HasPrefix(l, "README") })
	}
	slices.Sort(english.links)
	slices.Sort(chinese.links)
	if a, b := other(english.links), other(chinese.links); !slices.Equal(a, b) {
		t.Errorf("README.md links to\n%s\nREADME.zh-CN.md to\n%s", a, b)
	}
}

func TestLinksInDocumentsLeadToFiles(t *testing.T) {
	for _, pattern := range []string{"*.md", "docs/*.md", "*/README.md", "*/*/README.md"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			for _, l := range readDocument(t, path).links {
				if _, err := os.Stat(filepath.Join(filepath.Dir(path), filepath.FromSlash(l))); err != nil {
					t.Errorf("%s links to %s: %v", path, l, err)
				}
			}
		}
	}
}

// Tests are renamed more often than read about.
func TestTheTestsThatDocumentsNameExist(t *testing.T) {
	var tests strings.Builder
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		tests.Write(text)
	}
	text, err := os.ReadFile("docs/invariants.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range regexp.MustCompile(`\bTest[A-Z]\w+`).FindAllString(string(text), -1) {
		if !strings.Contains(tests.String(), "\nfunc "+name+"(") {
			t.Errorf("docs/invariants.md names %s, and there is no such test", name)
		}
	}
}
