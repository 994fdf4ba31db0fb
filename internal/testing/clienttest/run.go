package clienttest

import (
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

// A Suite is the clients to test, and how to open a store with them.
type Suite struct {
	Library
	Other Library // another library, for the tests that lose replies and scripts

	// ClusterRights are the rights that a user of a Cluster needs, as RulesOf returns them.
	ClusterRights string

	// Open makes a store that has up to MaxInFlight scripts of one key in flight.
	Open        func(t *testing.T, client redisstore.Client) *redisstore.Store
	MaxInFlight int64
}

type suiteTest struct {
	name string
	run  func(*testing.T, Suite)
}

// RunSequential runs the tests that make one call at a time.
func RunSequential(t *testing.T, s Suite) {
	s.run(t,
		suiteTest{"server comes up later", serverComesUpLater},
		suiteTest{"server cannot decide", serverCannotDecide},
		suiteTest{"server is loading", serverIsLoading},
		suiteTest{"wrong login", wrongLogin},
		suiteTest{"rights on one server", rightsOnOneServer},
		suiteTest{"wrong digest", wrongDigest},
	)
	// The following tests use one Cluster in turn. Some flush scripts, change the settings of memory
	// or add users, and the last test kills most nodes.
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		c := redistest.StartCluster(t)
		t.Run("nodes", func(t *testing.T) { nodesOfACluster(t, s, c) })
		t.Run("scripts on each server", func(t *testing.T) { scriptsOnACluster(t, s, c) })
		t.Run("rights", func(t *testing.T) { rightsOnACluster(t, s, c) })
		t.Run("down", func(t *testing.T) {
			if err := c.Tolerate(time.Second); err != nil {
				t.Fatal(err)
			}
			clusterDown(t, s, c)
		})
	})
}

// RunConcurrent runs the tests that make several calls at a time.
func RunConcurrent(t *testing.T, s Suite) {
	s.run(t,
		suiteTest{"lost replies never charge twice", func(t *testing.T, s Suite) { lostRepliesNeverChargeTwice(t, s, OneBehindProxy(t)) }},
		suiteTest{"forgotten scripts charge once", func(t *testing.T, s Suite) { forgottenScriptsChargeOnce(t, s, OneBehindProxy(t)) }},
		suiteTest{"every call ends", everyCallEnds},
		suiteTest{"loaded limits need no other script", loadedLimits},
		suiteTest{"one caller loads", oneCallerLoads},
		suiteTest{"one caller sends the text", oneCallerSendsTheText},
		suiteTest{"deadlines while connecting", func(t *testing.T, s Suite) { DeadlinesWhileConnecting(t, s.Library) }},
		suiteTest{"linearizable", func(t *testing.T, s Suite) { linearizable(t, s, effort.Of(12, 3000)) }},
		suiteTest{"linearizable with lost replies", func(t *testing.T, s Suite) { linearizableWithLostReplies(t, s, effort.Of(10, 600)) }},
	)
	// The following tests use one Cluster in turn, because some flush scripts, and some lose replies.
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		target := clusterBehindProxies(t)
		t.Run("lost replies never charge twice", func(t *testing.T) { lostRepliesNeverChargeTwice(t, s, target) })
		t.Run("forgotten scripts charge once", func(t *testing.T) { forgottenScriptsChargeOnce(t, s, target) })
		t.Run("loaded limits need no other script", func(t *testing.T) { loadOnACluster(t, s, target.cluster) })
		t.Run("linearizable", func(t *testing.T) { linearizableByKey(t, s, target.cluster, effort.Of(3, 500)) })
	})
}

func (s Suite) run(t *testing.T, tests ...suiteTest) {
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t, s)
		})
	}
}

// clients makes clients of both libraries, if they support this kind of server.
func (s Suite) clients(target Target, o Options) (makers []Maker) {
	for _, l := range []Library{s.Library, s.Other} {
		switch {
		case target.cluster == nil:
			makers = append(makers, l.on(target.addrs()[0], o))
		case l.Cluster != nil:
			makers = append(makers, l.onCluster(target.addrs(), o))
		}
	}
	return makers
}
