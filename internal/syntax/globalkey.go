package syntax

// GlobalKey is the key of limits that all requests share. No identity with a source has this key,
// because its keys contain a colon.
const GlobalKey = "global"
