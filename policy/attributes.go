package policy

import "net/netip"

// Attributes are the parts of a request that rules can use. A transport implements them lazily,
// because rules look up only what they need.
type Attributes interface {
	// Lookup returns the values of one attribute, which the caller must not change. The result is
	// empty if the request lacks the attribute, or if the transport does not know the kind. Kinds
	// without a name have at most one value:
	//
	//   - KindMethod: the method, in upper case.
	//   - KindHost: the host without its port, in lower case.
	//   - KindPath: the path in canonical form, as Paths.Clean returns it. If there is none, rules use
	//     "/".
	//   - KindRawQuery: the query as it was sent, without the question mark.
	//
	// The other kinds need a name:
	//
	//   - KindHeader: a header field; the name is in the canonical form of net/http.
	//   - KindCookie, KindQuery: a cookie, or a parameter of the query. Return all values that any
	//     server may read under this name, whatever the case of the name. Rules cannot see a value
	//     that is missing here.
	//   - KindDescriptor: the entries of a descriptor with this key, as Envoy's rate limit service
	//     sends them.
	Lookup(kind Kind, name string) []string

	// HasHeader reports whether the request has a header field whose name passes the test. The name
	// may be in any case, but has the bytes that the client sent.
	HasHeader(test func(name string) bool) bool

	// Address is the client's address. The address is invalid if the client has none, as on a Unix
	// socket.
	Address() netip.Addr

	// BodySize is the length of the body in bytes, or -1 if it is not known yet.
	BodySize() int64
}

func firstValue(a Attributes, kind Kind) string {
	if values := a.Lookup(kind, ""); len(values) > 0 {
		return values[0]
	}
	return ""
}
