// Command herdgate shows and changes what herdgate caches keep in Redis, and what a
// running service does with it. README.md beside this file has an example of each
// command.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"
)

// The exit codes.
const (
	exitDone   = 0
	exitFailed = 1 // it could not be done, or what was asked for is not there
	exitUsage  = 2 // the command line makes no sense
)

func main() {
	redis.SetLogger(silent{}) // what goes wrong is told once, by us
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], output{Writer: os.Stdout, live: isTerminal(os.Stdout)}, os.Stderr)
	stop()
	os.Exit(code)
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// output is where the answer goes.
type output struct {
	io.Writer
	live bool // a terminal, whose screen may be cleared
}

// command is one of the things that this program does.
type command struct {
	name  string
	args  string // as the usage shows them
	about string
	// setup declares the command's flags and returns what runs it.
	setup func(*flag.FlagSet) action
}

// action runs a command. Notes of how it goes, which are no part of the answer, go to notes.
type action func(ctx context.Context, args []string, out output, notes io.Writer) error

func commands() []command {
	return []command{
		{"inspect", "KEY", "what is stored for a key, how old it is, and who builds it", inspectCommand},
		{"delete", "KEY...", "delete keys, in Redis and in every running service", deleteCommand},
		{"expire", "KEY...", "mark keys stale: served while they are refreshed", expireCommand},
		{"watch", "", "what running services tell each other: changes, wake-ups", watchCommand},
		{"top", "URL", "what a running service does: outcomes a second, hottest keys", topCommand},
	}
}

// usageError is a command line that makes no sense.
type usageError struct{ error }

func misused(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// run is the program. The answer goes to out, and only that.
func run(ctx context.Context, args []string, out output, errOut io.Writer) int {
	err := dispatch(ctx, args, out, errOut)
	_, misuse := errors.AsType[usageError](err)
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, flag.ErrHelp):
		return exitDone
	case misuse:
		_, _ = fmt.Fprintf(errOut, "herdgate: %v\n", err)
		return exitUsage
	}
	_, _ = fmt.Fprintf(errOut, "herdgate: %s\n", strings.TrimPrefix(err.Error(), "herdgate: "))
	return exitFailed
}

func dispatch(ctx context.Context, args []string, out output, errOut io.Writer) error {
	if len(args) == 0 {
		printUsage(errOut)
		return misused("which command? `herdgate -h` explains them")
	}
	switch args[0] {
	case "-h", "-help", "--help", "help":
		printUsage(out)
		return flag.ErrHelp
	}
	for _, c := range commands() {
		if c.name == args[0] {
			return c.run(ctx, args[1:], out, errOut)
		}
	}
	return misused("there is no command %q: want %s", args[0], commandNames())
}

func (c command) run(ctx context.Context, args []string, out output, errOut io.Writer) error {
	flags := flag.NewFlagSet(c.name, flag.ContinueOnError)
	flags.SetOutput(io.Discard) // an error is told by run, help goes to out
	act := c.setup(flags)
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		_, _ = fmt.Fprintf(out, "%s\n\n%s\n\n", c.synopsis(), c.about)
		flags.SetOutput(out)
		flags.PrintDefaults()
		return err
	case err != nil:
		return misused("%w; `herdgate %s -h` lists the flags", err, c.name)
	}
	rest := flags.Args()
	// A flag after an argument would be taken for one more key, and deleted.
	closed := len(args) > len(rest) && args[len(args)-len(rest)-1] == "--"
	for _, arg := range rest {
		if !closed && strings.HasPrefix(arg, "-") {
			return misused("%q stands after an argument: flags come first; -- before the arguments allows such a key", arg)
		}
	}
	return act(ctx, rest, out, errOut)
}

func (c command) synopsis() string {
	return strings.TrimRight("herdgate "+c.name+" [flags] "+c.args, " ")
}

func commandNames() string {
	var names []string
	for _, c := range commands() {
		names = append(names, c.name)
	}
	return strings.Join(names, ", ")
}

func printUsage(w io.Writer) {
	_, _ = fmt.Fprintln(w, "usage:")
	for _, c := range commands() {
		_, _ = fmt.Fprintf(w, "  %-34s %s\n", c.synopsis(), c.about)
	}
	_, _ = fmt.Fprintln(w, "\n`herdgate COMMAND -h` lists the flags of a command. The exit code is 0 when it was done,\n"+
		"1 when it was not or there is no such key, 2 when the command line makes no sense.")
}
