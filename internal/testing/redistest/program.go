package redistest

import (
	"os"
	"path/filepath"
	"strings"
)

// Program returns the binary that all tests run as a server, a Sentinel or a Cluster node. It is
// the file in PENSTOCK_TEST_SERVER, or else redis-server in the PATH.
func Program() string {
	if file := os.Getenv("PENSTOCK_TEST_SERVER"); file != "" {
		return file
	}
	return "redis-server"
}

// CLI returns the command line client of Program, such as valkey-cli next to valkey-server.
func CLI() string {
	dir, name := filepath.Split(Program())
	return dir + strings.Replace(name, "-server", "-cli", 1)
}
