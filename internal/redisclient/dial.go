package redisclient

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"

	"github.com/redis/rueidis"

	"github.com/penstock/penstock/internal/luagen"
	"github.com/penstock/penstock/internal/redisinfo"
)

// A Client has the methods of redisstore.Client. It is a client of rueidis that may not be
// connected yet.
type Client struct{ connector *Connector }

// Dial makes a Client that connects in the background. If it cannot connect, it tries again when it
// is used. newReplyError makes an error of the text of an error reply, such as "OOM command not
// allowed".
func Dial(option rueidis.ClientOption, newReplyError func(text string) error) Client {
	return Client{Connect(option, newReplyError)}
}

func (c Client) EvalSha(ctx context.Context, digest string, keys, args []string) (string, error) {
	r, err := c.connector.Get(ctx)
	if err != nil {
		return "", err
	}
	return c.result(r.Do(ctx, r.B().Evalsha().Sha1(digest).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()))
}

func (c Client) Eval(ctx context.Context, script string, keys, args []string) (string, error) {
	r, err := c.connector.Get(ctx)
	if err != nil {
		return "", err
	}
	return c.result(r.Do(ctx, r.B().Eval().Script(script).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()))
}

func (c Client) Sharded(ctx context.Context) (bool, error) {
	r, err := c.connector.Get(ctx)
	return err == nil && r.Mode() == rueidis.ClientModeCluster, err
}

func (c Client) Ping(ctx context.Context) error {
	r, err := c.connector.Get(ctx)
	if err != nil {
		return err
	}
	_, err = c.result(r.Do(ctx, r.B().Ping().Build()))
	return err
}

func (c Client) Close() error {
	c.connector.Close()
	return nil
}

func (c Client) Load(ctx context.Context, key string, scripts []string) error {
	r, err := c.connector.Get(ctx)
	if err != nil {
		return err
	}
	if key != "" {
		return c.loadOn(ctx, r, key, scripts)
	}
	if err := c.loadOnEach(ctx, r.Nodes(), scripts); err != nil {
		return err
	}
	if r.Mode() != rueidis.ClientModeCluster { // the client of a Cluster knows the replicas
		c.loadOnReplicas(ctx, r, scripts)
	}
	return nil
}

func (c Client) loadOnEach(ctx context.Context, nodes map[string]rueidis.Client, scripts []string) error {
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

// loadOn loads scripts into one server. With a key, the scripts go to the server that owns the key.
// Without one, node has only one server.
func (c Client) loadOn(ctx context.Context, node rueidis.Client, key string, scripts []string) error {
	commands := make(rueidis.Commands, len(scripts))
	for i := range scripts {
		commands[i] = node.B().ScriptLoad().Script(scripts[i]).Build()
		if key != "" {
			commands[i] = commands[i].SetSlot(key)
		}
	}
	for i, r := range node.DoMulti(ctx, commands...) {
		digest, err := c.result(r)
		if err == nil {
			err = luagen.CheckLoaded(scripts[i], digest)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// loadOnReplicas loads scripts into the replicas of a primary, so that a promoted replica knows
// them. It ignores errors, because this machine may be unable to reach a replica. Decide loads what
// a new primary lacks.
func (c Client) loadOnReplicas(ctx context.Context, primary rueidis.Client, scripts []string) {
	info, err := c.result(primary.Do(ctx, primary.B().Info().Section("replication").Build()))
	if err != nil {
		return
	}
	var loads sync.WaitGroup
	for _, address := range replicasIn(info) {
		loads.Go(func() {
			option := c.connector.option // Close closes these connections too
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
	for name, list := range redisinfo.Parse(info) {
		host, port := redisinfo.ListField(list, "ip"), redisinfo.ListField(list, "port")
		if redisinfo.IsNumbered(name, "slave") && host != "" && port != "" {
			addresses = append(addresses, net.JoinHostPort(host, port))
		}
	}
	slices.Sort(addresses)
	return addresses
}

func (c Client) result(r rueidis.RedisResult) (string, error) {
	text, err := r.ToString()
	if err != nil {
		return "", c.connector.asReplyError(err)
	}
	return text, nil
}
