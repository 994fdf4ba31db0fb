package syntax

// GlobalKey is the key of limits that all requests share. Keys that are made from a request contain
// a colon, so none of them equals it.
const GlobalKey = "global"
