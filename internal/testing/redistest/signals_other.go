//go:build !unix

package redistest

import "os"

// Tests cannot run on systems without these signals, but the package must compile there.
var stopSignal, continueSignal = os.Kill, os.Kill
