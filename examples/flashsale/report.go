package main

import (
	"fmt"
	"math"
	"strings"
	"text/tabwriter"
	"time"
)

// report is what this program finds; its JSON is the output of -json.
type report struct {
	Ways []measured `json:"ways"`

	frozen []frozen
}

// measured is a sale in one way.
type measured struct {
	Name            string  `json:"name"`
	Sold            int     `json:"sold"`
	Oversold        int     `json:"oversold"`
	OrdersPerSecond float64 `json:"orders_s"` // until the last order

	statements, commands float64 // SQL and Redis, an order; those of tries that found nothing left included
}

// frozen is what became of a frozen holder's sale of frozenItems.
type frozen struct {
	name  string
	write error // errRefused, or nil if it was accepted
	sold  int
}

// perSecond has one decimal.
func perSecond(n int, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return math.Round(float64(n)/d.Seconds()*10) / 10
}

func (r report) table() string {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 3, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(t, "\tsold\toversold\torders/s\tSQL an order\tRedis an order\t")
	for _, m := range r.Ways {
		_, _ = fmt.Fprintf(t, "%s\t%d\t%d\t%.0f\t%.1f\t%.1f\t\n", m.Name, m.Sold, m.Oversold, m.OrdersPerSecond, m.statements, m.commands)
	}
	_ = t.Flush() // a Builder takes everything
	_, _ = fmt.Fprintf(&b, "\nA holder of the lock is frozen past its lease, having read a stock of %d. Others buy all of it. It goes on:\n", frozenItems)
	for _, f := range r.frozen {
		became := "accepted"
		if f.write != nil {
			became = "refused"
		}
		_, _ = fmt.Fprintf(&b, "%8s: its late write is %s, and %d of %d are sold\n", f.name, became, f.sold, frozenItems)
	}
	return b.String()
}
