// Package rediscli writes command lines of redis-cli for a POSIX shell.
package rediscli

import (
	"net"
	"strconv"
	"strings"
)

// Word quotes a word for a POSIX shell. It uses single quotes if the word has characters that the
// shell may interpret, as in +script|load and ~ps1*.
func Word(word string) string {
	const harmless = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-_./:,@%="
	if word != "" && strings.Trim(word, harmless) == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// A Server is the server that redis-cli calls.
type Server struct {
	Address  string // HOST:PORT, or the path of a Unix socket
	HasTLS   bool
	Database int
}

// Command returns redis-cli with the options that reach the server. It contains no password:
// redis-cli prompts for it, or reads it from REDISCLI_AUTH.
func (s Server) Command() string {
	line := "redis-cli"
	if host, port, err := net.SplitHostPort(s.Address); err == nil {
		line += " -h " + Word(host) + " -p " + Word(port)
	} else {
		line += " -s " + Word(s.Address)
	}
	if s.HasTLS {
		line += " --tls"
	}
	if s.Database != 0 {
		line += " -n " + strconv.Itoa(s.Database)
	}
	return line
}
