package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

func (p *program) buildPenstock() error {
	if p.penstockFile != "" {
		return nil
	}
	file := filepath.Join(p.oracle.dir, "penstock")
	cmd := exec.Command("go", "build", "-o", file, ".")
	cmd.Dir, cmd.Stderr = filepath.Join("..", "..", ".."), os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build penstock: %w", err)
	}
	p.penstockFile = file
	return nil
}

// penstockStarter returns a starter of penstock serve. mode is exact or atomic.
func (p *program) penstockStarter(mode string) starter {
	return func(name string, conf *startConfig, redis string) (*service, error) {
		if err := p.buildPenstock(); err != nil {
			return nil, err
		}
		addresses, err := freeAddresses(2)
		if err != nil {
			return nil, err
		}
		args := []string{
			"serve", "--envoy-config", conf.dir, "--envoy-mode", mode, "--grpc", addresses[0], "--api", addresses[1], "--admin-listen", "off",
			"--store", "redis://" + redis, "--store-timeout", answerTimeout.String(), // so that a busy machine causes no fallback
		}
		for _, flag := range []struct {
			isSet bool
			text  string
		}{
			{conf.settings.hasHeaders, "--envoy-headers=plain"},
			{conf.settings.hasMetadata, "--envoy-metadata"},
			{conf.settings.isShadow, "--envoy-shadow-mode"},
			{conf.settings.isQuota, "--envoy-quota-mode"},
		} {
			if flag.isSet {
				args = append(args, flag.text)
			}
		}
		s := &service{name: name, grpc: addresses[0], http: addresses[1]}
		return s, s.start(filepath.Dir(conf.dir), nil, p.penstockFile, args...)
	}
}
