package main

import (
	"errors"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/settings"
)

// Exit codes. Scripts rely on them: none ever changes its meaning.
const (
	exitOK          = 0
	exitInternal    = 1 // something went wrong that is none of the others
	exitUsage       = 2 // the command line makes no sense
	exitDenied      = 3 // a limit denied what was asked for
	exitInvalid     = 4 // the configuration cannot be used
	exitUnreachable = 5 // the store does not answer
)

func (p *program) exitCode(err error) int {
	var denied *penstock.DeniedError
	switch {
	case !p.began: // flags and arguments are read before
		return exitUsage
	case errors.As(err, &denied):
		return exitDenied
	case errors.Is(err, settings.ErrInvalid), errors.Is(err, penstock.ErrInvalid):
		return exitInvalid
	case errors.Is(err, penstock.ErrUnavailable):
		return exitUnreachable
	}
	return exitInternal
}
