package envoyrls

import (
	"strconv"
	"strings"

	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyconfig"
)

// A Dialect is a format of rate limit headers.
type Dialect string

const (
	// DialectPlain is the format of envoyproxy/ratelimit (LIMIT_RESPONSE_HEADERS_ENABLED). It shows
	// the last limit without quota_mode that denies, or else the one with the fewest requests left:
	//	RateLimit-Limit: 10
	//	RateLimit-Remaining: 9
	//	RateLimit-Reset: 1
	DialectPlain Dialect = "plain"

	// DialectDraft03 is the format of Envoy's enable_x_ratelimit_headers. Use it where Envoy does
	// not write these headers itself:
	//	X-RateLimit-Limit: 10, 10;w=1;name="second", 1000;w=3600
	//	X-RateLimit-Remaining: 9
	//	X-RateLimit-Reset: 1
	DialectDraft03 Dialect = "draft-03"

	// DialectDraft11 is draft-ietf-httpapi-ratelimit-headers-11. It shows all limits:
	//	RateLimit-Policy: "second";q=10;w=1, "1";q=1000;w=3600
	//	RateLimit: "second";r=9;t=1, "1";r=980;t=1200
	// The name of a limit without a name is the position of its descriptor, counted from 1.
	DialectDraft11 Dialect = "draft-11"
)

// appendHeaders adds the header fields, if a limit applied. They show the status with the index
// denied. If denied is negative, they show the first of those with the fewest requests left.
func (c *call) appendHeaders(to *Response, denied int) {
	i := denied
	for other := range to.Statuses {
		s := &to.Statuses[other]
		if denied < 0 && s.Limit != nil && (i < 0 || s.Remaining < to.Statuses[i].Remaining) {
			i = other
		}
	}
	if i < 0 {
		return
	}
	strictest := &to.Statuses[i]
	reset := clamp(c.resetsInSeconds[i])
	number := func(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
	limit := number(strictest.Limit.RequestsPerUnit)
	for _, d := range c.engine.options.Headers {
		switch d {
		case DialectPlain:
			to.Headers = append(to.Headers, Header{"RateLimit-Limit", limit}, Header{"RateLimit-Remaining", number(strictest.Remaining)},
				Header{"RateLimit-Reset", number(reset)})
		case DialectDraft03:
			to.Headers = append(to.Headers, Header{"X-RateLimit-Limit", limit + draft03Policies(to)}, Header{"X-RateLimit-Remaining", number(strictest.Remaining)},
				Header{"X-RateLimit-Reset", number(reset)})
		case DialectDraft11:
			policies, states := c.draft11(to)
			to.Headers = append(to.Headers, Header{"RateLimit-Policy", policies}, Header{"RateLimit", states})
		}
	}
}

// draft03Policies returns the part of X-RateLimit-Limit that lists the limits with a unit.
func draft03Policies(to *Response) string {
	var b strings.Builder
	for i := range to.Statuses {
		l := to.Statuses[i].Limit
		if l == nil || l.Unit == envoyconfig.UnitUnknown {
			continue
		}
		b.WriteString(", ")
		b.WriteString(strconv.FormatUint(uint64(l.RequestsPerUnit), 10))
		b.WriteString(";w=")
		b.WriteString(strconv.FormatInt(int64(l.period().Seconds()), 10))
		if l.Name != "" {
			b.WriteString(";name=")
			b.WriteString(quoted(l.Name))
		}
	}
	return b.String()
}

func (c *call) draft11(to *Response) (policies, states string) {
	var policyList, stateList strings.Builder
	for i := range to.Statuses {
		status := &to.Statuses[i]
		l := status.Limit
		if l == nil {
			continue
		}
		if policyList.Len() > 0 {
			policyList.WriteString(", ")
			stateList.WriteString(", ")
		}
		name := quoted(l.Name)
		if l.Name == "" {
			name = `"` + strconv.Itoa(i+1) + `"`
		}
		policyList.WriteString(name + ";q=" + strconv.FormatUint(uint64(l.RequestsPerUnit), 10))
		if l.Unit != envoyconfig.UnitUnknown { // calendar windows of a policy have no fixed length
			policyList.WriteString(";w=" + strconv.FormatInt(int64(l.period().Seconds()), 10))
		}
		stateList.WriteString(name + ";r=" + strconv.FormatUint(uint64(status.Remaining), 10) + ";t=" + strconv.FormatInt(c.resetsInSeconds[i], 10))
	}
	return policyList.String(), stateList.String()
}

// quoted returns text as a string of a structured field (RFC 9651). Characters that such a string
// cannot contain are omitted.
func quoted(text string) string {
	b := []byte{'"'}
	for _, ch := range []byte(text) {
		switch {
		case ch < ' ' || ch > '~':
		case ch == '"' || ch == '\\':
			b = append(b, '\\', ch)
		default:
			b = append(b, ch)
		}
	}
	return string(append(b, '"'))
}
