package main

import (
	"fmt"
	"os"

	"go.yaml.in/yaml/v4"

	"github.com/penstock/penstock/cmd/penstock/internal/service"
	"github.com/penstock/penstock/cmd/penstock/internal/settings"
)

// gate makes the limits of the policy file. There are none yet: everything passes.
func gate(settings.Settings) service.Builder { return nil }

// serverSection reads the server section of a policy file.
func serverSection(path string) (settings.Server, error) {
	var file struct {
		Server settings.Server `yaml:"server"`
	}
	text, err := os.ReadFile(path)
	if err == nil {
		err = yaml.Load(text, &file)
	}
	if err != nil {
		err = fmt.Errorf("%w: policy file: %w", settings.ErrInvalid, err)
	}
	return file.Server, err
}
