package policyfile

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/penstock/penstock/internal/wording"
)

// suggestFields returns what to write in place of n where the fields of the struct that p points to
// are expected.
func suggestFields(n *yaml.Node, p any) string {
	switch p.(type) {
	case *limitConfig, *candidateConfig:
		if rate := rateIn(n); rate != "" {
			return fmt.Sprintf("{rate: %s}", rate)
		}
		return "{rate: 100/s} with your numbers"
	case *ruleConfig:
		return "{name: search, per: ip, limits: [{rate: 100/s}]} with your values"
	}
	return "fields with values: " + wording.List(slices.Sorted(maps.Keys(fieldsIn(p))), "or")
}

// suggestHeaders returns the right form of header fields that were written as names with values.
func suggestHeaders(n *yaml.Node) string {
	var texts []string
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode || value.Kind != yaml.ScalarNode || value.Value == "" {
			return "'X-API-Key: a'"
		}
		texts = append(texts, "'"+strings.ReplaceAll(wording.Clip(key.Value+": "+value.Value), "'", "''")+"'")
	}
	if len(texts) == 1 {
		return texts[0]
	}
	return "[" + strings.Join(texts, ", ") + "]"
}

// suggestList returns what to write in place of n where a list is expected. element points to a
// value of the list.
func suggestList(n *yaml.Node, element any) string {
	switch element.(type) {
	case *limitConfig, *ruleConfig:
		if n.Kind == yaml.ScalarNode {
			return "write [" + suggestFields(n, element) + "]"
		}
	}
	return "put it into brackets, or a dash and a space before each item"
}

// rateIn returns the rate that a node contains, as it is written within braces, or "".
func rateIn(n *yaml.Node) string {
	if n.Kind != yaml.ScalarNode {
		return ""
	}
	if _, _, err := parseRate(n.Value); err != nil {
		return ""
	}
	if strings.Contains(n.Value, ",") {
		return strconv.Quote(n.Value)
	}
	return n.Value
}

// Names that other limiters give to the parts of a rate.
var (
	timesInRate   = []string{"window", "period", "interval", "duration", "unit", "seconds", "per_second", "per_minute", "per_hour", "window_size", "time_window"}
	numbersInRate = []string{"limit", "requests", "max_requests", "quota", "count", "max", "calls", "average", "requests_per_unit", "points"}
)

// suggestRate returns how to write an unknown field of a limit as a rate. For any other field it
// returns "".
func suggestRate(name string, value *yaml.Node, known map[string]field) string {
	_, isLimit := known["rate"] // true: the field is in a limit; false: the field may be in a rule
	if _, hasLimits := known["limits"]; !isLimit && !hasLimits {
		return ""
	}
	name = strings.ToLower(strings.ReplaceAll(name, "-", "_"))
	isTime, isNumber := slices.Contains(timesInRate, name), slices.Contains(numbersInRate, name)
	rate := rateIn(value)
	switch {
	case !isLimit && name == "limit", !isTime && !isNumber:
		return "" // in a rule, limit is a misspelled limits
	case !isLimit && rate != "":
		return fmt.Sprintf("write limits: [{rate: %s}]", rate)
	case rate != "":
		return "write rate: " + rate
	}
	explanation := "the number is part of the rate"
	if isTime {
		explanation = "the time is part of the rate"
	}
	if !isLimit {
		return explanation + ", as in limits: [{rate: 100/min}] or [{rate: 5/30s}]"
	}
	return explanation + ", as in rate: 100/min or rate: 5/30s"
}
