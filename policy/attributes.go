package policy

import "net/netip"

// Attributes are what is known of a request. Transports implement them lazily: a policy asks only
// for what its rules need.
type Attributes interface {
	Method() string
	Host() string // without the port, in lower case
	Path() string // canonical, as Paths.Clean returns it
	// Header returns all values of a header field, whose name is in the canonical form of net/http.
	// Cookie and Query return those of a cookie and of a parameter of the query: all that any
	// server may take for one, whatever the case of its name, since values that are not returned
	// here count for no limit.
	Header(name string) []string
	Cookie(name string) []string
	Query(name string) []string
	RawQuery() string    // as it was sent, without the question mark
	Address() netip.Addr // the client's; invalid if it has none
	BodySize() int64     // bytes; -1 if it is not known beforehand
}
