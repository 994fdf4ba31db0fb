// Package reserved names the groups and limits of charges that belong to no limit of a policy. No
// rule may have a name with Prefix.
package reserved

const (
	// Prefix is the prefix of all reserved groups.
	Prefix = "penstock."

	// Once is the prefix of groups whose charges make repeats of a request free, until its
	// reservation is settled. While the store gives no answer, these charges are not counted, so
	// repeats are not noticed.
	Once = Prefix + "once."

	// Settled is the prefix of groups whose charges let a correction be made only once. While the
	// store gives no answer, nothing is corrected.
	Settled = Prefix + "settled."

	// CallerLimits is the group of limits that callers send with their requests.
	CallerLimits = Prefix + "caller-limits"

	// NewIdentities is the name of the limit of a rule's new_identities, in metrics and responses.
	NewIdentities = "new-identities"
)
