package command

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"

	"github.com/penstock/penstock/cmd/penstock/internal/tools/accesslog"
)

// showProgress shows how much of a log is read, if stderr is a terminal. The caller must call stop
// before it prints.
func showProgress(stderr io.Writer, log *accesslog.Reader) (stop func()) {
	file, isFile := stderr.(*os.File)
	if !isFile || !term.IsTerminal(int(file.Fd())) {
		return func() {}
	}
	return followProgress(file, log.Progress)
}

// followProgress writes a line about the progress every half second until stop, which clears it.
func followProgress(to io.Writer, progress func() (read, total int64)) (stop func()) {
	const clear = "\r\x1b[K"
	stopping, stopped := make(chan struct{}), make(chan struct{}) // closed by stop, and when the goroutine has ended
	go func() {
		defer close(stopped)
		tick := time.NewTicker(500 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stopping:
				fmt.Fprint(to, clear)
				return
			case <-tick.C:
			}
			read, total := progress()
			fmt.Fprintf(to, clear+"%.1f MB", float64(read)/1e6)
			if total > 0 {
				fmt.Fprintf(to, " of %.1f MB (%d %%)", float64(total)/1e6, min(read*100/total, 100))
			}
			fmt.Fprint(to, " read")
		}
	}()
	return func() {
		close(stopping)
		<-stopped
	}
}
