package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"

	"github.com/redis/rueidis"
)

func (c rueidisClient) Load(ctx context.Context, key string, scripts []Script) error {
	if key != "" {
		return c.loadOn(ctx, c.Client, key, scripts)
	}
	nodes := c.Nodes()
	results := make(chan error, len(nodes))
	for address, node := range nodes {
		go func() {
			err := c.loadOn(ctx, node, "", scripts)
			if err != nil {
				err = fmt.Errorf("%s: %w", address, err)
			}
			results <- err
		}()
	}
	var errs []error
	for range nodes {
		errs = append(errs, <-results)
	}
	return errors.Join(errs...)
}

// loadOn loads scripts into one server. If key is "", it is the only server of node. If not, it is
// the server that owns key.
func (c rueidisClient) loadOn(ctx context.Context, node rueidis.Client, key string, scripts []Script) error {
	commands := make(rueidis.Commands, len(scripts))
	for i := range scripts {
		commands[i] = node.B().ScriptLoad().Script(scripts[i].Text).Build()
		if key != "" {
			commands[i] = commands[i].SetSlot(key)
		}
	}
	for i, r := range node.DoMulti(ctx, commands...) {
		digest, err := result(r)
		if err == nil {
			err = scripts[i].Check(digest)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (d dialedClient) Load(ctx context.Context, key string, scripts []Script) error {
	c, err := d.get(ctx)
	if err != nil {
		return err
	}
	if err := c.Load(ctx, key, scripts); err != nil {
		return err
	}
	if key == "" && c.Mode() != rueidis.ClientModeCluster { // the client of a Cluster knows the replicas
		d.loadReplicas(ctx, c, scripts)
	}
	return nil
}

// loadReplicas loads scripts into the replicas of a primary, so that a promoted replica knows them.
// It ignores errors, because this machine may be unable to reach a replica. Decide loads what a new
// primary lacks.
func (d dialedClient) loadReplicas(ctx context.Context, c rueidisClient, scripts []Script) {
	info, err := result(c.Do(ctx, c.B().Info().Section("replication").Build()))
	if err != nil {
		return
	}
	var loads sync.WaitGroup
	for _, address := range replicasIn(info) {
		loads.Go(func() {
			option := d.Option()
			option.InitAddress, option.Sentinel, option.ForceSingleClient = []string{address}, rueidis.SentinelOption{}, true
			if replica, err := rueidis.NewClient(option); err == nil {
				_ = c.loadOn(ctx, replica, "", scripts)
				replica.Close()
			}
		})
	}
	loads.Wait()
}

// replicasIn returns the addresses of the replicas in a reply of INFO replication:
// slave0:ip=10.0.0.2,port=6379,state=online,…
func replicasIn(info string) (addresses []string) {
	for line := range strings.Lines(info) {
		name, fields, _ := strings.Cut(strings.TrimSpace(line), ":")
		if number, ok := strings.CutPrefix(name, "slave"); !ok || strings.Trim(number, "0123456789") != "" {
			continue
		}
		var host, port string
		for field := range strings.SplitSeq(fields, ",") {
			switch name, value, _ := strings.Cut(field, "="); name {
			case "ip":
				host = value
			case "port":
				port = value
			}
		}
		if host != "" && port != "" {
			addresses = append(addresses, net.JoinHostPort(host, port))
		}
	}
	return addresses
}
