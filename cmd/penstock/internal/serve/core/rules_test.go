package core

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/serve/metrics"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/cmd/penstock/internal/testing/logbuffer"
	"github.com/penstock/penstock/internal/panicked"
	"github.com/penstock/penstock/policy/policyfile"
)

func TestPanicStackIsLogged(t *testing.T) {
	log := new(logbuffer.Buffer)
	logMistakes(log.Logger(), "rules.yaml", fmt.Errorf("reload: %w", &panicked.Error{Doing: "load rules.yaml", Value: "index out of range", Stack: []byte("goroutine 1")}))
	if len(log.Lines("level=ERROR", "policy reload failed", "index out of range", `stack="goroutine 1"`)) != 1 {
		t.Errorf("no error line has the panic and its stack: %s", log)
	}
}

// TestSlowReloadDelaysNothing: a slow reload delays neither the end of the process nor the next
// reload.
func TestSlowReloadDelaysNothing(t *testing.T) {
	const patience = time.Minute
	file := filepath.Join(t.TempDir(), "rules.yaml")
	writeRule := func(name string) {
		t.Helper()
		text := "rules: [{name: " + name + ", per: global, limits: [{rate: 1/s}]}]\n"
		if err := errors.Join(os.WriteFile(file+"~", []byte(text), 0o600), os.Rename(file+"~", file)); err != nil {
			t.Fatal(err)
		}
	}
	writeRule("one")
	log := new(logbuffer.Buffer)
	r := &rules{settings: settings.Settings{Config: file}, metrics: metrics.New("", nil, 80), log: log.Logger()}
	loads := make(chan string, 10) // gets the name of each loaded rule
	release := make(chan struct{}) // each value lets one reload take effect
	isFirst := true
	if err := r.watch(func(next *policyfile.Policy) {
		loads <- next.Rules.Spec().Rules[0].Name
		if !isFirst {
			<-release
		}
		isFirst = false
	}); err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	r.reloading.Go(func() { r.reloadOn(ctx, nil) })
	awaitLoad := func(name string) {
		t.Helper()
		select {
		case got := <-loads:
			if got != name {
				t.Errorf("the loaded rule is %s; want %s", got, name)
			}
		case <-time.After(patience):
			t.Fatalf("rule %s was not loaded within %v", name, patience)
		}
	}
	awaitLoad("one")
	writeRule("two")
	awaitLoad("two")
	writeRule("three") // while the reload of rule two is in progress
	release <- struct{}{}
	awaitLoad("three")
	release <- struct{}{}
	writeRule("four")
	awaitLoad("four") // this reload is still in progress when close is called
	if name := r.current.Rules().Spec().Rules[0].Name; name != "three" {
		t.Errorf("during the reload of rule four, rule %s is in force; want three", name)
	}
	end()
	closed := make(chan struct{})
	go func() { r.close(); close(closed) }()
	select {
	case <-closed:
	case <-time.After(patience):
		t.Errorf("close has not returned within %v; want it not to wait for the reload in progress", patience)
	}
	close(release)
	r.watcher.Close()
}
