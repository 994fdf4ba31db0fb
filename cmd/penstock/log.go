package main

import (
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/lmittmann/tint"
	"golang.org/x/term"
)

// logger writes to standard error: JSON, or text, which is for people on a terminal and for programs elsewhere.
func (p *program) logger(format, level string) *slog.Logger {
	var least slog.Level
	least.UnmarshalText([]byte(level)) // the settings know no others
	options := &slog.HandlerOptions{Level: least}
	file, ok := p.err.(*os.File)
	switch {
	case format == "json":
		return slog.New(slog.NewJSONHandler(p.err, options))
	case ok && term.IsTerminal(int(file.Fd())):
		noColor := slices.ContainsFunc(p.environ, func(v string) bool { return strings.HasPrefix(v, "NO_COLOR=") && v != "NO_COLOR=" })
		return slog.New(tint.NewTextHandler(p.err, &tint.Options{Level: least, NoColor: noColor, TimeFormat: "15:04:05"}))
	}
	return slog.New(slog.NewTextHandler(p.err, options))
}
