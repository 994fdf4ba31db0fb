package redisclient

import (
	"slices"
	"testing"
)

func TestReplicasAreReadFromInfo(t *testing.T) {
	const info = "# Replication\r\nrole:master\r\nconnected_slaves:6\r\n" +
		"slave0:ip=10.0.0.2,port=6379,state=online,offset=1,lag=0\r\n" +
		"slave1:port=6380,ip=::1,state=online\r\n" +
		"slave2:port=6381,state=online\r\n" + // no address
		"slave3:ip=10.0.0.3,state=online\r\n" + // no port
		"slave4:ip=,port=6382\r\n" +
		"slave5:ip=10.0.0.4,port=\r\n" +
		"slave_priority:ip=10.0.0.5,port=1\r\n"
	if got, want := replicasIn(info), []string{"10.0.0.2:6379", "[::1]:6380"}; !slices.Equal(got, want) {
		t.Errorf("the replicas are %q; want %q", got, want)
	}
}
