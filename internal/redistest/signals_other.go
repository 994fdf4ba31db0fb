//go:build !unix

package redistest

import "os"

// Systems without these signals have no servers to pause, but their tools read this package.
var stopSignal, continueSignal = os.Kill, os.Kill
