package httplimit

import "github.com/penstock/penstock/internal/transport/quotaheaders"

// A Dialect is a form of the header fields about limits. A response may have several.
type Dialect = quotaheaders.Dialect

// The dialects. Draft11 lists every limit. The older dialects have room for one limit, the
// strictest. The strictest limit is that with the longest RetryAfter, or else with the smallest
// fraction of its units left. Draft11 and Draft07 write the same field in two forms, so a response
// can have only one of them.
const (
	// Draft11 is draft-ietf-httpapi-ratelimit-headers-11:
	//	RateLimit-Policy: "search.second";q=10;w=1, "search.day";q=10000;w=86400
	//	RateLimit: "search.second";r=9;t=1, "search.day";r=9120;t=40112
	Draft11 = quotaheaders.Draft11

	// Draft07 is the draft of 2023:
	//	RateLimit-Policy: 10;w=1
	//	RateLimit: limit=10, remaining=9, reset=1
	Draft07 = quotaheaders.Draft07

	// Draft06 has a field for each number: RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset.
	// Without Draft11 beside it, it also has the RateLimit-Policy of Draft07.
	Draft06 = quotaheaders.Draft06

	// XRateLimit has X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset. Reset is a Unix
	// time, or seconds from now.
	XRateLimit = quotaheaders.XRateLimit
)

// noDialect is the only value of Config.Headers that is not a Dialect.
const noDialect = "none"

// HeaderValues returns the values that Config.Headers may have: the names of the dialects, and
// "none".
func HeaderValues() (values []string) {
	for _, d := range quotaheaders.Dialects() {
		values = append(values, string(d))
	}
	return append(values, noDialect)
}
