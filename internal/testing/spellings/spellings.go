// Package spellings has many ways to write one path, or the name of one header, for tests of code
// that reads them.
package spellings

import "strings"

// Path is the path that all spellings mean.
const Path = "/api/rides/request"

// All returns request targets. A server must read each of them as Path, or reject it.
func All() (targets []string) {
	// Each segment of the path, plain and with percent-encoded characters.
	segments := [][]string{{"api", "%61pi", "a%70i", "ap%69", "%61%70%69"}, {"rides", "r%69des", "%72ides", "ride%73"}, {"request", "%72equest", "req%75est", "reques%74"}}
	// What a path may have between two segments, with the same meaning as a slash.
	joints := []string{"/", "//", "/./", "/x/../", "/%2e/", "/x/%2e%2e/", "/x/.%2E/"}
	for i, joint := range joints {
		for _, a := range segments[0] {
			for j, b := range segments[1] {
				targets = append(targets, joint+a+joints[(i+j)%len(joints)]+b+joint+segments[2][(i+j)%len(segments[2])])
			}
		}
	}
	return append(targets, "/../api/rides/request", "/api/rides%2Frequest", "/api/rides%5crequest", "/api/rides/request%00", "/api/rides/../rides/request",
		"/api\\rides\\request", "/api/rides/request?x=1", "/api/rides/request?/../", "/%2e%2e/api/rides/request", "/api/rides/x/../request")
}

// Header returns other names that some servers read as the name of a header. The name needs a dash.
func Header(name string) (names []string) {
	for _, separator := range []string{"_", ".", "~", "!", "'", "*", "|", "+"} {
		names = append(names, strings.ReplaceAll(name, "-", separator), strings.ToLower(strings.Replace(name, "-", separator, 1)))
	}
	return names
}
