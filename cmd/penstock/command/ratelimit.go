package command

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/cmd/penstock/internal/settings"
)

// ratelimitName is the name of envoyproxy/ratelimit's program. If this program is called so, it
// takes the place of that one.
const ratelimitName = "ratelimit"

// newRatelimit makes the command that serves as envoyproxy/ratelimit is set up.
func newRatelimit(algorithms []*algorithm.Algorithm) *cobra.Command {
	var show bool
	c := &cobra.Command{
		Use:   ratelimitName,
		Short: "Run the service with the environment variables of envoyproxy/ratelimit",
		Long: "ratelimit is serve with settings from the environment variables of envoyproxy/ratelimit, such as RUNTIME_ROOT and REDIS_URL.\n" +
			"Variables of Penstock take precedence, such as PENSTOCK_ENVOY_MODE=exact. As there, callers need no token, so the network\n" +
			"must protect the service. The program does the same if it is called ratelimit, as by a link in an image.",
		Example: "  RUNTIME_ROOT=/data REDIS_SOCKET_TYPE=tcp REDIS_URL=redis:6379 penstock ratelimit",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			flags, notes, err := settings.FromRatelimit(os.Environ())
			if err != nil {
				return err
			}
			return serve(c, flags, notes, show, algorithms)
		},
	}
	c.Flags().BoolVar(&show, "print-settings", false, "print each setting with its source, and exit")
	return c
}
