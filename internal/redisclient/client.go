// Package redisclient sets up clients of Redis. It reads URLs, connects in the background, and
// corrects what rueidis does with connections. It also lets callers return at their deadlines.
package redisclient

import (
	"errors"
	"fmt"

	"github.com/penstock/penstock/internal/lazy"
)

var (
	// ErrNotSent marks errors that occurred before anything was sent.
	ErrNotSent = errors.New("nothing was sent")

	// ErrLate marks calls that were not sent because their deadline had passed, whether or not a
	// server could be reached.
	ErrLate = errors.New("the deadline passed before it was sent")

	// ErrClosed is the error of calls after Close.
	ErrClosed = lazy.ErrClosed
)

func NotSent(err error) error { return fmt.Errorf("%w: %w", ErrNotSent, err) }

func TooLate(err error) error { return NotSent(fmt.Errorf("%w: %w", ErrLate, err)) }
