package command

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
)

// ratelimitName is the name of envoyproxy/ratelimit's program. If this program is started under
// that name, it runs the command ratelimit.
const ratelimitName = "ratelimit"

func newRatelimit(algorithms []*algorithm.Algorithm) *cobra.Command {
	var shouldPrint bool
	c := &cobra.Command{
		Use:   ratelimitName,
		Short: "Run the service with the environment variables of envoyproxy/ratelimit",
		Long: "ratelimit runs serve with the environment variables of envoyproxy/ratelimit, such as RUNTIME_ROOT and REDIS_URL.\n" +
			"Variables of Penstock take precedence, such as PENSTOCK_ENVOY_MODE=exact. As with envoyproxy/ratelimit, callers need no token,\n" +
			"so the network must protect the service. The program runs this command if its file is named ratelimit, for example by a\n" +
			"link in an image.",
		Example: "  RUNTIME_ROOT=/data REDIS_SOCKET_TYPE=tcp REDIS_URL=redis:6379 penstock ratelimit",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			flags, notes, err := settings.FromRatelimit(os.Environ())
			if err != nil {
				return err
			}
			return serve(c, flags, notes, shouldPrint, algorithms)
		},
	}
	c.Flags().BoolVar(&shouldPrint, "print-settings", false, "print each setting with its source, and exit")
	return c
}
