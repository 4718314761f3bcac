// Package suite is the command: it chooses scenarios, peers and variants, runs them in
// turn, and writes what was measured.
package suite

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/herdgate/herdgate/bench/internal/peer"
	"github.com/herdgate/herdgate/bench/internal/scenario"
)

// config is what the command line asks for.
type config struct {
	scenarios []scenario.Scenario
	peers     []peer.Kind
	variants  []string // nil: all
	runs      int
	json      bool
	check     bool
	out       string // folder of the report; empty: none
	results   string // file of the tables; empty: none
	options   scenario.Options
}

const usage = `usage: go run . <scenario|all> [flags]

Scenarios:
`

func parse(args []string, stderr io.Writer) (*config, error) {
	c := &config{}
	var peers, variants string
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&peers, "peer", "herdgate", "`names` of peers, separated by commas, or all")
	flags.StringVar(&variants, "variant", "", "`names` of variants, separated by commas (default all)")
	flags.IntVar(&c.runs, "runs", 1, "how often everything is measured; figures are medians")
	flags.BoolVar(&c.json, "json", false, "write a JSON object a line to standard output")
	flags.BoolVar(&c.check, "check", false, "hold herdgate's figures against its targets; exit with 1 if one is missed")
	flags.StringVar(&c.out, "out", "", "write report.html into this `folder`")
	flags.StringVar(&c.results, "results", "", "write the tables as Markdown into this `file`")
	flags.IntVar(&c.options.Instances, "instances", 1000, "the largest fleet that is simulated, from 8 to 10000")
	flags.Usage = func() { printUsage(stderr, flags) }

	name, rest, err := positional(flags, args)
	if err != nil {
		return c, err
	}
	if len(rest) > 0 {
		return c, fmt.Errorf("one scenario is wanted, and there is %q beside %q", rest[0], name)
	}
	if name == "" {
		return c, errors.New("which scenario? want one of " + strings.Join(scenarioNames(), ", ") + ", or all")
	}
	if c.scenarios, err = scenario.Choose(name); err != nil {
		return c, err
	}
	if c.peers, err = peer.Choose(peers); err != nil {
		return c, err
	}
	if c.runs < 1 {
		return c, fmt.Errorf("-runs is %d, want at least 1", c.runs)
	}
	if n := c.options.Instances; n < 8 || n > 10_000 {
		return c, fmt.Errorf("-instances is %d, want 8 to 10000", n)
	}
	return c, c.chooseVariants(variants)
}

// positional parses flags before and after the one argument that is none.
func positional(flags *flag.FlagSet, args []string) (name string, rest []string, err error) {
	if err := flags.Parse(args); err != nil {
		return "", nil, err
	}
	if flags.NArg() == 0 {
		return "", nil, nil
	}
	name = flags.Arg(0)
	err = flags.Parse(flags.Args()[1:])
	return name, flags.Args(), err
}

func (c *config) chooseVariants(list string) error {
	if list == "" {
		return nil
	}
	c.variants = strings.Split(list, ",")
	var known []string
	for _, s := range c.scenarios {
		known = append(known, s.Variants(c.options)...)
	}
	for _, v := range c.variants {
		if !slices.Contains(known, v) {
			return fmt.Errorf("no variant %q; want some of %s", v, strings.Join(known, ", "))
		}
	}
	return nil
}

// variantsOf are the variants of a scenario that are asked for.
func (c *config) variantsOf(s scenario.Scenario) []string {
	all := s.Variants(c.options)
	if c.variants == nil {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(v string) bool { return !slices.Contains(c.variants, v) })
}

func scenarioNames() []string {
	var names []string
	for _, s := range scenario.All() {
		names = append(names, s.Name)
	}
	return names
}

func printUsage(w io.Writer, flags *flag.FlagSet) {
	_, _ = io.WriteString(w, usage)
	for _, s := range scenario.All() {
		_, _ = fmt.Fprintf(w, "  %-12s %s\n  %-12s variants: %s\n", s.Name, s.About, "", strings.Join(s.Variants(scenario.Options{Instances: 10_000}), ", "))
	}
	_, _ = io.WriteString(w, "\nPeers:\n")
	for _, k := range peer.Kinds() {
		_, _ = fmt.Fprintf(w, "  %-14s %s\n", k.Name, k.How)
	}
	_, _ = fmt.Fprintf(w, "  left out, as their modules cannot be had: %s\n\nFlags:\n", strings.Join(peer.LeftOut(), ", "))
	flags.PrintDefaults()
}
