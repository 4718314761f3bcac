package suite

import (
	"github.com/herdgate/herdgate/bench/internal/result"
	"io"
)

func (c *config) writeReports([]result.Cell, io.Writer) error { return nil }
