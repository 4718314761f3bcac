package result

import (
	"encoding/json"
	"io"
	"math"
)

// line is a line of JSON.
type line struct {
	Scenario string  `json:"scenario"`
	Peer     string  `json:"peer"`
	Variant  string  `json:"variant"`
	Figures  Figures `json:"figures"`
}

// WriteJSON writes the medians of a cell as one line of JSON.
func WriteJSON(w io.Writer, c Cell) error {
	figures := c.Median()
	for name, v := range figures {
		figures[name] = rounded(v)
	}
	return json.NewEncoder(w).Encode(line{c.Scenario, c.Peer, c.Variant, figures})
}

// rounded keeps five digits.
func rounded(v float64) float64 {
	if v == 0 {
		return 0
	}
	unit := math.Pow(10, 4-math.Floor(math.Log10(math.Abs(v))))
	if r := math.Round(v*unit) / unit; !math.IsNaN(r) && !math.IsInf(r, 0) {
		return r
	}
	return v
}
