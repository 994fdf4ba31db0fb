package luagen

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
)

// Digest returns the SHA-1 of a script in hexadecimal digits, by which a server knows the script.
func Digest(script string) string {
	sum := sha1.Sum([]byte(script))
	return hex.EncodeToString(sum[:])
}

// CheckLoaded returns an error if a reply to SCRIPT LOAD is not the digest of the script.
func CheckLoaded(script, reply string) error {
	if digest := Digest(script); reply != digest {
		return fmt.Errorf("the server answered SCRIPT LOAD with %.60q; the script's SHA-1 is %s", reply, digest)
	}
	return nil
}
