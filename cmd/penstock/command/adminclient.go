package command

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/cmd/penstock/internal/adminapi"
	"github.com/penstock/penstock/cmd/penstock/internal/settings"
)

// maxAnswer bounds what is read of an answer, in bytes.
const maxAnswer = 1 << 20

// An adminRequest is a request to the admin address of a running service.
type adminRequest struct {
	address, path string
	token         string // "": none
	body          []byte // JSON to post; nil: the path is read
}

// askAdmin sends a request once.
func askAdmin(ctx context.Context, a adminRequest) (status int, text string, err error) {
	network, target, err := adminTarget(a.address)
	if err != nil {
		return 0, "", err
	}
	host := target
	if network == "unix" {
		host = "localhost"
	}
	method := http.MethodGet
	if a.body != nil {
		method = http.MethodPost
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://"+host+a.path, bytes.NewReader(a.body))
	if err != nil {
		return 0, "", fmt.Errorf("--admin %q is no address; write host:port or unix:/path/of.sock", a.address)
	}
	if a.body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if a.token != "" {
		request.Header.Set("Authorization", "Bearer "+a.token)
	}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, target)
	}}
	res, err := transport.RoundTrip(request)
	if err != nil {
		return 0, "", fmt.Errorf("%s does not answer: %w; check that the service runs, and that --admin is its admin-listen", a.address, err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return 0, "", fmt.Errorf("%s did not answer in full: %w", a.address, err)
	}
	return res.StatusCode, string(body), nil
}

// askAPI sends a request to the admin API, and reads its answer into one of the API's types.
func askAPI(ctx context.Context, a adminRequest, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, 2*storeTimeout)
	defer cancel()
	status, text, err := askAdmin(ctx, a)
	if err != nil {
		return coded(exitUnreachable, err)
	}
	if status != http.StatusOK {
		var problem adminapi.Problem
		if err := json.Unmarshal([]byte(text), &problem); err != nil || problem.Detail == "" {
			problem.Detail = notTheAPI
		}
		code, known := map[int]int{http.StatusUnauthorized: exitInvalid, http.StatusForbidden: exitInvalid, http.StatusServiceUnavailable: exitUnreachable}[status]
		if !known {
			code = exitUsage
		}
		return coded(code, fmt.Errorf("%s answers with status %d: %s", a.address, status, problem.Detail))
	}
	if err := json.Unmarshal([]byte(text), answer); err != nil {
		return errNotTheAPI(a.address)
	}
	return nil
}

const notTheAPI = "its answer is not that of the admin API; check that --admin is its admin-listen"

func errNotTheAPI(address string) error {
	return coded(exitUsage, fmt.Errorf("%s: %s", address, notTheAPI))
}

// adminToken returns the token of operators. It fails if a flag is given that only the store needs.
func adminToken(c *cobra.Command, given *storeFlags) (string, error) {
	for name := range given.texts {
		if c.Flags().Changed(name) {
			return "", coded(exitUsage, fmt.Errorf("--admin asks a running instance, which has its own --%s; omit one of them", name))
		}
	}
	s, err := settings.Load(settings.Sources{Environ: os.Environ(), Only: []string{"operator-token"}})
	return string(s.OperatorToken), err
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
