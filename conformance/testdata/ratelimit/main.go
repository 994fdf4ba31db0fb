// Command ratelimit reports of configuration files whether envoyproxy/ratelimit loads them, by its
// own loader. Standard input is a stream of JSON strings, each the text of a file. Each is answered
// by a JSON string on a line: "" if it loads, otherwise the error.
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
		var text string
		if err := in.Decode(&text); err == io.EOF {
			return
		} else if err != nil {
			fmt.Fprintln(os.Stderr, "ratelimit: read a file:", err)
			os.Exit(1)
		}
		if err := out.Encode(load(text, manager)); err != nil {
			fmt.Fprintln(os.Stderr, "ratelimit:", err)
			os.Exit(1)
		}
	}
}

func load(text string, manager stats.Manager) (problem string) {
	defer func() {
		if err := recover(); err != nil {
			problem = fmt.Sprint(err)
			if problem == "" {
				problem = "unknown"
			}
		}
	}()
	file := config.RateLimitConfigToLoad{Name: "file", ConfigYaml: config.ConfigFileContentToYaml("file", text)}
	config.NewRateLimitConfigImpl([]config.RateLimitConfigToLoad{file}, manager, false)
	return ""
}
