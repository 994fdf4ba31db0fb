package redistest

import (
	"os"
	"path/filepath"
	"strings"
)

// Program is the server that all tests run, as a server, as a sentinel and as a node of a Cluster:
// the file that PENSTOCK_TEST_SERVER names, or else redis-server of the PATH.
func Program() string {
	if file := os.Getenv("PENSTOCK_TEST_SERVER"); file != "" {
		return file
	}
	return "redis-server"
}

// CLI is the command line client that belongs to Program: valkey-cli stands beside valkey-server.
func CLI() string {
	dir, name := filepath.Split(Program())
	return dir + strings.Replace(name, "-server", "-cli", 1)
}
