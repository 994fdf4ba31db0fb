package envoyconfig

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// A Config has the limits of a set of files. Load makes one. It never changes, and many goroutines
// may use it at the same time.
type Config struct {
	domains  map[string]*Domain
	limits   []*Limit // in the order of the files
	warnings []Warning
}

func (c *Config) Domain(name string) *Domain { return c.domains[name] }

func (c *Config) Domains() []string {
	return slices.Sorted(maps.Keys(c.domains))
}

// Limits returns all limits in the order of the files. Limit.Index is the index in this list.
func (c *Config) Limits() []*Limit { return c.limits }

// Warnings returns what is probably wrong in the files although envoyproxy/ratelimit accepts it.
func (c *Config) Warnings() []Warning { return c.warnings }

// String lists the limits, one per line, as envoyproxy/ratelimit lists them at /rlconfig.
func (c *Config) String() string {
	var b strings.Builder
	for _, l := range c.limits {
		fmt.Fprintf(&b, "%s: unit=%s requests_per_unit=%d, shadow_mode: %t, quota_mode: %t\n", l.Path, l.Unit, l.RequestsPerUnit, l.ShadowMode, l.QuotaMode)
	}
	return b.String()
}

type Domain struct {
	Name  string
	index int // in the order of the files
	node
}

// A node is a descriptor of the configuration, or the root of a domain.
type node struct {
	key, value string // as in the file
	children   []*node
	limit      *Limit // nil: the descriptor has no rate_limit

	exact     map[string]*node // children by their composite key
	wildcards []wildcard       // children with an asterisk in their composite key, in the order of the file

	isValueInMetric bool   // value_to_metric is set
	shared          string // the wildcard key_value with share_threshold, or ""; see sharedValue
	line            int    // of the descriptor in file
	file            string
}

// compositeOf returns the composite key of a descriptor in the files: key_value, or the key alone
// if it has no value.
func compositeOf(key, value string) string {
	if value == "" {
		return key
	}
	return key + "_" + value
}

// A Limit is the rate_limit of one descriptor.
type Limit struct {
	Index int    // in the list of Config.Limits
	Path  string // domain and composite keys, as envoyproxy/ratelimit names the limit in its statistics

	RequestsPerUnit uint32 // 0 denies everything
	Unit            Unit   // UnitUnknown if IsUnlimited
	IsUnlimited     bool
	Name            string
	Replaces        []string // names of limits that do not apply if this one does

	ShadowMode     bool
	QuotaMode      bool
	DetailedMetric bool
	ValueToMetric  bool // set at the descriptor or at one above it
	Metadata       map[string]any

	File string // where the rate_limit is
	Line int

	domain      string
	domainIndex int      // in the order of the files
	keys        []string // of the descriptors from the domain down to this one
	values      []string // of the same descriptors; "": any
	isShared    []bool   // whether the same descriptors have share_threshold
}

// A Unit is the period of a limit. The numbers are those of the protocol.
type Unit int32

const (
	UnitUnknown Unit = iota
	Second
	Minute
	Hour
	Day
	Month // 30 days
	Year  // 365 days
	Week
)

var units = [...]struct {
	name   string
	period time.Duration
}{
	UnitUnknown: {"UNKNOWN", 0},
	Second:      {"SECOND", time.Second},
	Minute:      {"MINUTE", time.Minute},
	Hour:        {"HOUR", time.Hour},
	Day:         {"DAY", 24 * time.Hour},
	Month:       {"MONTH", 30 * 24 * time.Hour},
	Year:        {"YEAR", 365 * 24 * time.Hour},
	Week:        {"WEEK", 7 * 24 * time.Hour},
}

// IsValid reports whether a limit can have the unit.
func (u Unit) IsValid() bool { return u > UnitUnknown && int(u) < len(units) }

// Period returns the length of the unit, or 0 if the unit is not valid.
func (u Unit) Period() time.Duration {
	if !u.IsValid() {
		return 0
	}
	return units[u].period
}

func (u Unit) String() string {
	if u >= 0 && int(u) < len(units) {
		return units[u].name
	}
	return fmt.Sprintf("Unit(%d)", int32(u))
}

// parseUnit returns the unit with a name, in upper or lower case. It returns UnitUnknown if no
// valid unit has the name.
func parseUnit(text string) Unit {
	text = strings.ToUpper(text)
	for u := Second; u.IsValid(); u++ {
		if units[u].name == text {
			return u
		}
	}
	return UnitUnknown
}
