// SPDX-License-Identifier: Apache-2.0

// Package doorprobe periodically checks that the ports of the Machine Config Server on each
// control-plane node lead to the gate.
//
// It runs in every replica of the controller, without leader election, because one replica may reach a
// port that another one cannot. Every replica has metrics, a log and Events with the reason DoorOpen.
// Package verifierstatus writes the condition DoorOpen, as observed by the replica that leads.
//
// It watches nothing and writes only Events. It connects to ports 22623 and 22624 of the nodes in the
// inventory. It needs only the permissions of the inventory and of Events. If it runs twice, there are
// two Events, which are combined into one. If it runs late, the last observation remains.
package doorprobe

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/mcs-attest/mcs-attest/pkg/seal"
	"github.com/mcs-attest/mcs-attest/verifier/internal/door"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/events"
)

const (
	// maxNodes is the maximum number of Nodes that are checked. A control plane has 3 to 5.
	maxNodes = 64
	// concurrent is the number of Nodes that are checked at one time.
	concurrent = 4
	// unknownRounds is the number of rounds for which a port may be unknown before that is reported. An
	// update restarts the replicas.
	unknownRounds = 3
)

// Metrics receives the state of each port.
type Metrics interface {
	Door(node, port, state string, states []string)
	NoDoor(node string)
}

// Options configure a Prober. All but Interval are required.
type Options struct {
	Log     *slog.Logger
	Metrics Metrics
	Events  events.Sink
	// Keys returns the keys with which the gate proves its identity.
	Keys func() seal.Ring
	// ControlPlane returns the Nodes of the control plane with their addresses. It returns false while
	// they are not known.
	ControlPlane func() (map[string][]netip.Addr, bool)
	Interval     time.Duration // default 30 s
}

// Prober checks the ports. It is safe for concurrent use.
type Prober struct {
	o     Options
	probe func(context.Context, netip.Addr) (gate, clear door.Observation)

	mu     sync.Mutex
	ports  map[port]state
	ready  bool // the last round has ended, and the control plane had Nodes
	none   bool // the last round has ended, and there was nothing to check
	unread bool // it is not known whether the cluster has a control plane to check
}

type port struct {
	node   string
	number int
}

// state is the last observation of a port, and the reported state.
type state struct {
	door.Observation
	reported door.State
	unknown  int // the number of rounds for which it has been unknown
}

// New returns a Prober that checks nothing before Start.
func New(o Options) *Prober {
	o.Interval = cmp.Or(o.Interval, 30*time.Second)
	prober := &door.Prober{Keys: o.Keys}
	return &Prober{o: o, probe: prober.Probe, ports: map[port]state{}}
}

// SetupWithManager adds the prober to a manager.
func (p *Prober) SetupWithManager(m manager.Manager) error { return m.Add(p) }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (p *Prober) NeedLeaderElection() bool { return false }

// Start checks until ctx ends.
func (p *Prober) Start(ctx context.Context) error {
	wait.UntilWithContext(ctx, p.round, p.o.Interval)
	return nil
}

// round checks every Node once.
func (p *Prober) round(ctx context.Context) {
	all, known := p.o.ControlPlane()
	p.mu.Lock()
	p.unread = !known
	p.mu.Unlock()
	if !known {
		return // keeps what was reported
	}
	names := slices.Sorted(maps.Keys(all))
	if len(names) > maxNodes {
		p.o.Log.Warn("too many Nodes have a control-plane role; some are not checked",
			"nodes", len(names), "checked", maxNodes)
		names = names[:maxNodes]
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, concurrent)
	for _, name := range names {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			gate, clear := p.check(ctx, all[name])
			if ctx.Err() == nil {
				p.observe(port{name, door.GatePort}, gate)
				p.observe(port{name, door.ClearPort}, clear)
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready, p.none = len(names) > 0, len(names) == 0
	for at := range p.ports {
		if !slices.Contains(names, at.node) {
			delete(p.ports, at)
			p.o.Metrics.NoDoor(at.node)
		}
	}
}

// check observes all addresses of a Node. It returns the worst observation of each port.
func (p *Prober) check(ctx context.Context, addresses []netip.Addr) (gate, clear door.Observation) {
	none := door.Observation{State: door.Unknown, Text: "the Node has no internal address"}
	gate, clear = none, none
	for i, address := range addresses {
		g, c := p.probe(ctx, address)
		g.Text, c.Text = address.String()+": "+g.Text, address.String()+": "+c.Text
		if i == 0 {
			gate, clear = g, c
			continue
		}
		gate, clear = worst(gate, g), worst(clear, c)
	}
	return gate, clear
}

func worst(a, b door.Observation) door.Observation {
	rank := map[door.State]int{door.Closed: 0, door.Unknown: 1, door.Open: 2}
	if rank[b.State] > rank[a.State] {
		return b
	}
	return a
}
