package command

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// maxAnswer bounds what is read of an answer, in bytes.
const maxAnswer = 1 << 20

// askAdmin gets a path from the admin address of a running service, with a token if there is one.
func askAdmin(ctx context.Context, address, path, token string) (status int, text string, err error) {
	network, target, err := adminTarget(address)
	if err != nil {
		return 0, "", err
	}
	host := target
	if network == "unix" {
		host = "localhost"
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+path, nil)
	if err != nil {
		return 0, "", fmt.Errorf("--admin %q is no address; write host:port or unix:/path/of.sock", address)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, target)
	}}
	res, err := transport.RoundTrip(request)
	if err != nil {
		return 0, "", fmt.Errorf("%s does not answer: %w; check that the service runs, and that --admin is its admin-listen", address, err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return 0, "", fmt.Errorf("%s did not answer in full: %w", address, err)
	}
	return res.StatusCode, string(body), nil
}

// adminTarget returns where to connect. An address for listening on all addresses is reached by
// loopback.
func adminTarget(address string) (network, target string, err error) {
	if path, ok := strings.CutPrefix(address, "unix:"); ok && path != "" {
		return "unix", strings.TrimPrefix(path, "//"), nil
	}
	host, port, err := net.SplitHostPort(strings.TrimPrefix(address, "http://"))
	if err != nil || port == "" {
		return "", "", fmt.Errorf("%q is no address; write host:port or unix:/path/of.sock", address)
	}
	ip, err := netip.ParseAddr(host)
	switch {
	case host == "", err == nil && ip.Is4() && ip.IsUnspecified():
		host = "127.0.0.1"
	case err == nil && ip.IsUnspecified():
		host = "::1"
	}
	return "tcp", net.JoinHostPort(host, port), nil
}
