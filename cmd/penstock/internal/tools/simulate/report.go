package simulate

import "time"

// A Report has what penstock simulate -o json prints.
type Report struct {
	Seed        uint64       `json:"seed"`
	Simulations []Simulation `json:"simulations"` // of each algorithm
}

// A Simulation is what one algorithm did.
type Simulation struct {
	Limit     string   `json:"limit"`
	Algorithm string   `json:"algorithm"`
	Regions   int      `json:"regions,omitempty"`
	Across    string   `json:"across,omitempty"`
	Bounds    []string `json:"bounds"` // how much is admitted at most
	Note      string   `json:"note,omitempty"`
	Arrivals  string   `json:"arrivals"`
	Result
	Timeline  []Row      `json:"timeline"`
	Decisions []Decision `json:"decisions,omitempty"`

	Period time.Duration `json:"-"` // of the limit
}
