package serve

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cluster"
	"github.com/mcs-attest/mcs-attest/verifier/internal/door"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/events"
)

const (
	// maxDoorNodes bounds the Nodes that are checked. A control plane has 3 to 5.
	maxDoorNodes = 64
	// doorChecks is how many Nodes are checked at one time.
	doorChecks = 4
	// unknownRounds is for how many rounds a port may be unknown before it is reported:
	// an update restarts the replicas.
	unknownRounds = 3
)

// doors checks on every replica, again and again, that the ports of the Machine Config
// Server on each control-plane node lead to the gate. Every replica reports metrics
// and Events. The holder of the lease also writes the condition DoorOpen.
type doors struct {
	cluster  *Cluster
	prober   door.Prober
	interval time.Duration

	mu     sync.Mutex
	ports  map[doorPort]doorState
	ready  bool // one round has ended, and there were Nodes
	unread bool // it is not known whether there is a control plane to check
}

type doorPort struct {
	node string
	port int
}

// doorState is the last observation of a port, and the state that is reported.
type doorState struct {
	door.Observation
	reported door.State
	unknown  int // rounds for which it has been unknown
}

func newDoors(b *Cluster) *doors {
	return &doors{
		cluster: b, prober: door.Prober{Keys: b.SealKeys}, ports: map[doorPort]doorState{},
		interval: cmp.Or(time.Duration(b.parts.Config.Kubernetes.DoorInterval), 30*time.Second),
	}
}

// Run checks until ctx ends.
func (d *doors) Run(ctx context.Context) {
	for {
		d.round(ctx)
		select {
		case <-ctx.Done():
			return
		case <-time.After(d.interval):
		}
	}
}

func (d *doors) round(ctx context.Context) {
	all, known := d.cluster.cluster.ControlPlane()
	d.mu.Lock()
	d.unread = !known
	d.mu.Unlock()
	if !known {
		return // what was reported stays
	}
	names := slices.Sorted(maps.Keys(all))
	if len(names) > maxDoorNodes {
		d.cluster.parts.Log.Warn("too many Nodes have a control-plane role; some are not checked", "nodes", len(names), "checked", maxDoorNodes)
		names = names[:maxDoorNodes]
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, doorChecks)
	for _, name := range names {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			gate, clear := d.check(ctx, all[name])
			if ctx.Err() == nil {
				d.observed(doorPort{name, door.GatePort}, gate)
				d.observed(doorPort{name, door.ClearPort}, clear)
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ready = len(names) > 0
	for at := range d.ports {
		if !slices.Contains(names, at.node) {
			delete(d.ports, at)
			d.cluster.parts.Metrics.NoDoor(at.node)
		}
	}
}

// check observes all addresses of a Node. The worst observation of each port counts.
func (d *doors) check(ctx context.Context, addresses []netip.Addr) (gate, clear door.Observation) {
	none := door.Observation{State: door.Unknown, Text: "the Node has no internal address"}
	gate, clear = none, none
	for i, address := range addresses {
		g, c := d.prober.Probe(ctx, address)
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

// observed keeps an observation and reports a door that has opened or closed.
func (d *doors) observed(at doorPort, o door.Observation) {
	o.Text = audit.Clean(o.Text)
	d.mu.Lock()
	before := d.ports[at]
	now := doorState{Observation: o, reported: o.State}
	if o.State == door.Unknown {
		now.unknown = before.unknown + 1
		if now.unknown < unknownRounds {
			now.reported = cmp.Or(before.reported, door.Unknown)
		}
	}
	d.ports[at] = now
	d.mu.Unlock()
	states := make([]string, len(door.States))
	for i, state := range door.States {
		states[i] = string(state)
	}
	s := d.cluster.parts
	s.Metrics.Door(at.node, strconv.Itoa(at.port), string(now.reported), states)
	if now.reported == before.reported {
		return
	}
	if now.reported != door.Open {
		s.Log.Info("door of the Machine Config Server", "node", at.node, "port", at.port, "state", string(now.reported), "observation", o.Text)
		return
	}
	s.Log.Error("the Machine Config Server answers without the gate", "node", at.node, "port", at.port, "observation", o.Text)
	d.cluster.events.Emit(events.Event{
		About:   events.Object{APIVersion: "v1", Kind: "Node", Name: at.node, UID: at.node}, // as the kubelet names it
		Warning: true, Reason: "DoorOpen", Message: d.text(at, o),
	})
}

func (d *doors) text(at doorPort, o door.Observation) string {
	return fmt.Sprintf("port %d of Node %s: %s", at.port, at.node, o.Text)
}

// in lists the ports that are reported in a state.
func (d *doors) in(state door.State) (texts []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for at, o := range d.ports {
		if o.reported == state {
			texts = append(texts, d.text(at, o.Observation))
		}
	}
	slices.Sort(texts)
	return texts
}

// Findings implements the option of the cluster.
func (d *doors) Findings() []cluster.Finding {
	open := d.in(door.Open)
	if len(open) == 0 {
		return nil
	}
	return []cluster.Finding{{Reason: "DoorOpen", Text: "machines receive configs without the gate: " + strings.Join(open, "; ")}}
}

// Condition is DoorOpen, as this replica sees it; without a type where there is nothing
// to check.
func (d *doors) Condition() metav1.Condition {
	d.mu.Lock()
	ready, unread := d.ready, d.unread
	d.mu.Unlock()
	if !ready && unread {
		return metav1.Condition{
			Type: v1alpha1.ConditionDoorOpen, Status: metav1.ConditionUnknown, Reason: "NotObserved",
			Message: "the MachineConfigPools were not read; they say whether there is a control plane to check",
		}
	}
	if !ready {
		return metav1.Condition{}
	}
	c := metav1.Condition{Type: v1alpha1.ConditionDoorOpen}
	open, unknown := d.in(door.Open), d.in(door.Unknown)
	switch {
	case len(open) > 0:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, "AnswersWithoutGate", strings.Join(open, "; ")
	case len(unknown) > 0:
		c.Status, c.Reason, c.Message = metav1.ConditionUnknown, "NotObserved", strings.Join(unknown, "; ")
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, "OnlyTheGateAnswers", "each control-plane node answers only through the gate"
	}
	return c
}
