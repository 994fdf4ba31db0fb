package command

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

func newHealthcheck() *cobra.Command {
	var address adminFlags
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "healthcheck [flags]",
		Short: "Check that the running service is ready, for containers",
		Long: "healthcheck requests /readyz at the admin address of a running service. It needs no shell and no curl in the image.\n" +
			"The address is that of --admin, or else of PENSTOCK_ADMIN_LISTEN, or else 127.0.0.1:9180. It does not read the policy\n" +
			"file: a broken file does not make a running service unhealthy.\n\n" +
			"Exit status: 0 ready, also if degraded; 1 not ready, no answer, or a wrong command line. Docker knows no other status.",
		Example: "  penstock healthcheck\n  penstock healthcheck --admin unix:/run/penstock/admin.sock",
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return withStatus(exitInternal, fmt.Errorf("unexpected argument %q; write --admin %s", args[0], args[0]))
			}
			text, err := fetchReadiness(c.Context(), &address, timeout)
			if err != nil {
				return withStatus(exitInternal, err)
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), text)
			return err
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return withStatus(exitInternal, explainFlagError(c, err)) })
	address.add(c, "admin address of the service (PENSTOCK_ADMIN_LISTEN)")
	c.Flags().DurationVar(&timeout, "timeout", 3*time.Second, "how long to wait for the answer")
	return c
}

// fetchReadiness returns the answer of /readyz. It returns an error if the service is not ready.
func fetchReadiness(ctx context.Context, address *adminFlags, timeout time.Duration) (string, error) {
	if err := address.setDefault(); err != nil {
		return "", err
	}
	instance, err := address.open(credential{})
	if err != nil {
		return "", err
	}
	defer instance.Close()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	status, text, err := instance.Send(ctx, "/readyz", nil)
	switch {
	case err != nil:
		return "", err
	case status != http.StatusOK:
		return "", fmt.Errorf("not ready: status %d, %.200q", status, strings.TrimSpace(string(text)))
	}
	return shortened(string(text)), nil
}
