package syntax

// GlobalKey is the key of limits that all requests share. Keys that are made from a request contain
// a colon, so none of them equals it.
const GlobalKey = "global"

// The bounds of what identifies a client, in bytes.
const (
	MaxKeyValue = 128     // a value in a key; longer values are hashed
	MaxToken    = 8 << 10 // a token; longer ones are not read
)
