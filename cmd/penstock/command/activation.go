package command

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
)

// firstInheritedFD is the first file descriptor that systemd passes: SD_LISTEN_FDS_START.
const firstInheritedFD = 3

// inheritedListener returns the listener for requests that systemd has opened for the process pid.
// Its file descriptor is firstFD. It returns nil if systemd has passed none to this process. The
// socket must have the name "listen"; see sd_listen_fds(3). systemd keeps the socket open, so
// clients can connect while the service restarts.
func inheritedListener(getenv func(string) string, pid int, firstFD uintptr) (net.Listener, error) {
	if getenv("LISTEN_PID") != strconv.Itoa(pid) {
		return nil, nil // no listener was passed, or it is for another process
	}
	names := getenv("LISTEN_FDNAMES")
	if getenv("LISTEN_FDS") != "1" || names != "listen" {
		return nil, fmt.Errorf("%w: systemd passes %q sockets with the names %q; write one socket unit with one ListenStream and FileDescriptorName=listen, and use the settings for other addresses",
			settings.ErrInvalid, getenv("LISTEN_FDS"), strings.Split(names, ":"))
	}
	f := os.NewFile(firstFD, names)
	defer f.Close() // FileListener duplicates it
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("%w: the socket of systemd: %w; write ListenStream", settings.ErrInvalid, err)
	}
	return l, nil
}
