// Command ratelimit loads configuration files with the loader of envoyproxy/ratelimit and reports
// the results. Standard input is a stream of JSON strings. Each is the text of a file in base64.
// The program writes a line with a JSON object for each file.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	gostats "github.com/lyft/gostats"

	"github.com/envoyproxy/ratelimit/src/config"
	"github.com/envoyproxy/ratelimit/src/settings"
	"github.com/envoyproxy/ratelimit/src/stats"
)

func main() {
	manager := stats.NewStatManager(gostats.NewStore(gostats.NewNullSink(), false), settings.NewSettings())
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var text []byte
		if err := in.Decode(&text); err == io.EOF {
			return
		} else if err != nil {
			fmt.Fprintln(os.Stderr, "ratelimit: read a file:", err)
			os.Exit(1)
		}
		if err := out.Encode(load(string(text), manager)); err != nil {
			fmt.Fprintln(os.Stderr, "ratelimit: write a result:", err)
			os.Exit(1)
		}
	}
}

type loadResult struct {
	Error  string // "": the loader accepts the file
	Limits string // as the service lists them at /rlconfig
}

// load loads a file. The loader reports errors by a panic.
func load(text string, manager stats.Manager) (result loadResult) {
	defer func() {
		if err := recover(); err != nil {
			result.Error = fmt.Sprintf("%T: %[1]v", err)
		}
	}()
	file := config.RateLimitConfigToLoad{Name: "file", ConfigYaml: config.ConfigFileContentToYaml("file", text)}
	result.Limits = config.NewRateLimitConfigImpl([]config.RateLimitConfigToLoad{file}, manager, false).Dump()
	return result
}
