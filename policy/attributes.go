package policy

import "net/netip"

// Attributes are what is known of a request. A transport implements them lazily: rules look up only
// what they need.
type Attributes interface {
	// Lookup returns the values of one attribute; none if the request does not have it, or if the
	// transport does not know the kind. The caller must not change them. The kinds without a name
	// have one value at most:
	//
	//   - KindMethod: the method, in upper case.
	//   - KindHost: the host without its port, in lower case.
	//   - KindPath: the path in canonical form, as Paths.Clean returns it. Default: "/".
	//   - KindRawQuery: the query as it was sent, without the question mark.
	//
	// The others need a name:
	//
	//   - KindHeader: a header field; the name is in the canonical form of net/http.
	//   - KindCookie, KindQuery: a cookie, or a parameter of the query. All values are returned that
	//     any server may read as one of this name, in whatever case the name is written. A value
	//     that is left out counts for no limit.
	Lookup(kind Kind, name string) []string

	// Address is the client's address. It is invalid if there is none, as on a Unix socket.
	Address() netip.Addr

	// BodySize is the length of the body in bytes; -1 if it is not known beforehand.
	BodySize() int64
}

// first is the value of an attribute that has one at most.
func first(a Attributes, kind Kind) string {
	if values := a.Lookup(kind, ""); len(values) > 0 {
		return values[0]
	}
	return ""
}
