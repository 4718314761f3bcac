// Package cli reads the command lines of the examples, which take flags only.
package cli

import (
	"errors"
	"flag"
	"fmt"
	"io"
)

// Parse reads the flags that define defines. The error, which the program tells, says what is wrong; after flag.ErrHelp
// the flags are listed on stderr.
func Parse(program string, args []string, stderr io.Writer, define func(*flag.FlagSet)) error {
	flags := flag.NewFlagSet(program, flag.ContinueOnError)
	flags.SetOutput(io.Discard) // the program tells what is wrong
	define(flags)
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			flags.SetOutput(stderr)
			flags.Usage()
		}
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q: want flags only", flags.Arg(0))
	}
	return nil
}
