package command

import (
	"errors"
	"strings"

	"github.com/penstock/penstock"
)

// storeHint says how to fix an error of the store. It returns "" for other errors, and for those
// that end by themselves.
func storeHint(err error) string {
	e, ok := errors.AsType[*penstock.StoreError](err)
	if !ok {
		return ""
	}
	fix := ""
	switch e.Reason {
	case penstock.ReasonOutOfMemory:
		fix = "Redis is full: raise its maxmemory, or delete what other programs keep there."
	case penstock.ReasonPermissionDenied:
		fix = "Grant the user of the URL what is missing: " + e.Hint + ". penstock acl prints all rights."
		if text := err.Error(); strings.Contains(text, "NOAUTH") || strings.Contains(text, "WRONGPASS") {
			fix = "Correct the user and the password in the URL, as in redis://USER:PASSWORD@HOST:6379, or write ?password_file=FILE."
		}
	case penstock.ReasonUnreachable, penstock.ReasonTimeout, penstock.ReasonUnknown:
		fix = "Check that Redis runs at this address, and the scheme of the URL: rediss:// for a port with TLS, redis:// for one without."
	default:
		return ""
	}
	return fix + " penstock doctor --store URL finds the cause."
}
