package doctor

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/penstock/penstock/internal/redisinfo"
)

func (d *doctor) discover(ctx context.Context) {
	if d.option.Sentinel.MasterSet != "" {
		d.kind = "sentinel"
		d.discoverBehindSentinel(ctx)
		return
	}
	scheme, _, _ := strings.Cut(d.URL, "://")
	isCluster := len(d.option.InitAddress) > 1 || strings.Contains(scheme, "cluster") // according to the URL
	var reached *server
	for _, address := range d.option.InitAddress {
		if s := d.addServer(ctx, address); s.client != nil {
			reached = s
			break
		}
	}
	if reached != nil && reached.hello["mode"] == "cluster" {
		isCluster = true
	}
	if isCluster {
		d.kind = "cluster"
	}
	switch {
	case reached == nil: // checkReach reports why
	case d.kind == "cluster":
		d.discoverCluster(ctx, reached)
	default:
		reached.isReplica = reached.role() == "replica" || reached.role() == "slave"
		d.primaries = []*server{reached}
		d.readInfo(ctx, reached)
		for _, address := range replicasIn(reached.info) {
			d.addServer(ctx, address).isReplica = true
		}
	}
}

// replicasIn returns the addresses of the replicas in INFO:
// slave0:ip=10.0.0.2,port=6379,state=online,…
func replicasIn(info map[string]string) (addresses []string) {
	for i := 0; info["slave"+strconv.Itoa(i)] != ""; i++ {
		line := info["slave"+strconv.Itoa(i)]
		host, port := redisinfo.ListField(line, "ip"), redisinfo.ListField(line, "port")
		isPortKnown := port != "" && port != "0"
		if host != "" && isPortKnown {
			addresses = append(addresses, net.JoinHostPort(host, port))
		}
	}
	return addresses
}

// discoverBehindSentinel connects to the primary and its replicas that the Sentinels name.
func (d *doctor) discoverBehindSentinel(ctx context.Context) {
	sentinelOption := d.option
	sentinelOption.Username, sentinelOption.Password, sentinelOption.SelectDB = d.option.Sentinel.Username, d.option.Sentinel.Password, 0
	sentinelOption.Dialer = d.option.Sentinel.Dialer // redisclient has marked it, so that its connections get the password of the Sentinels
	sentinelOption.TLSConfig, sentinelOption.ClientName = d.option.Sentinel.TLSConfig, d.option.Sentinel.ClientName
	name := d.option.Sentinel.MasterSet
	seen := make(map[string]bool) // addresses
	for _, address := range d.option.InitAddress {
		sentinel := d.connect(ctx, sentinelOption, address)
		d.sentinels = append(d.sentinels, sentinel)
		if sentinel.client == nil {
			continue
		}
		primary, err := d.do(ctx, sentinel, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", name).AsStrSlice() // its host and port
		if err != nil || len(primary) != 2 {
			switch {
			case rueidis.IsRedisNil(err):
				sentinel.err = fmt.Errorf("it knows no primary named %s", name)
			case err == nil:
				sentinel.err = fmt.Errorf("its reply about the primary of %s has %d fields, not a host and a port", name, len(primary))
			default:
				sentinel.err = fmt.Errorf("it does not name the primary of %s: %w", name, err)
			}
			continue
		}
		sentinel.primaryAddress = net.JoinHostPort(primary[0], primary[1])
		if !seen[sentinel.primaryAddress] {
			seen[sentinel.primaryAddress] = true
			d.primaries = append(d.primaries, d.addServer(ctx, sentinel.primaryAddress))
		}
		replicas, err := d.do(ctx, sentinel, "SENTINEL", "REPLICAS", name).ToArray()
		if err != nil {
			continue
		}
		for _, replica := range replicas {
			fields, err := replica.AsStrMap()
			if address := net.JoinHostPort(fields["ip"], fields["port"]); err == nil && !seen[address] {
				seen[address] = true
				d.addServer(ctx, address).isReplica = true
			}
		}
	}
}

// discoverCluster reads the nodes of a Cluster from one node, and connects to the others.
func (d *doctor) discoverCluster(ctx context.Context, node *server) {
	ranges, err := d.do(ctx, node, "CLUSTER", "SLOTS").ToArray()
	if err != nil {
		node.slotsError = err.Error()
		d.primaries = []*server{node}
		return
	}
	known := map[string]*server{}
	ownHost, _, _ := net.SplitHostPort(node.address)
	for _, r := range ranges {
		fields, err := r.ToArray() // the first slot, the last slot, the primary, and its replicas
		if err != nil || len(fields) < 3 {
			continue
		}
		first, _ := fields[0].AsInt64()
		last, _ := fields[1].AsInt64()
		for i, field := range fields[2:] {
			isPrimary := i == 0
			parts, err := field.ToArray() // the host, the port, and more
			if err != nil || len(parts) < 2 {
				continue
			}
			host, _ := parts[0].ToString()
			port, _ := parts[1].AsInt64()
			if host == "" { // this means the host of the node that replied
				host = ownHost
			}
			address := net.JoinHostPort(host, strconv.FormatInt(port, 10))
			s := known[address]
			if s == nil {
				s = d.member(ctx, address)
				s.isReplica = !isPrimary
				known[address] = s
				if isPrimary {
					d.primaries = append(d.primaries, s)
				}
			}
			if isPrimary {
				s.ranges = append(s.ranges, slotRange{first, last})
			}
		}
	}
	if known[node.address] == nil && len(known) > 0 { // the Cluster lists this node under another address
		node.connector.Close()
		d.servers = slices.DeleteFunc(d.servers, func(s *server) bool { return s == node })
	}
}

// member returns a node of the Cluster, and connects to it unless it is already connected.
func (d *doctor) member(ctx context.Context, address string) *server {
	if i := slices.IndexFunc(d.servers, func(s *server) bool { return s.address == address }); i >= 0 {
		return d.servers[i]
	}
	return d.addServer(ctx, address)
}

func (d *doctor) addServer(ctx context.Context, address string) *server {
	s := d.connect(ctx, d.option, address)
	d.servers = append(d.servers, s)
	return s
}

// readServers reads INFO of each server, unless it was read before. It also removes from
// d.primaries the servers that cannot be reached.
func (d *doctor) readServers(ctx context.Context) {
	for _, s := range d.servers {
		if s.client != nil && s.info == nil && s.infoErr == nil {
			d.readInfo(ctx, s)
		}
	}
	d.primaries = slices.DeleteFunc(d.primaries, func(s *server) bool { return s.client == nil })
}
