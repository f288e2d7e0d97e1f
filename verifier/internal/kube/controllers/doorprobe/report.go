// SPDX-License-Identifier: Apache-2.0

package doorprobe

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/door"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/events"
	"github.com/mcs-attest/mcs-attest/verifier/internal/view"
)

const (
	reasonOpen        = "DoorOpen"
	reasonAnswers     = "AnswersWithoutGate"
	reasonOnlyGate    = "OnlyTheGateAnswers"
	reasonNotObserved = "NotObserved"
)

// observe stores an observation, and reports a port whose state has changed. An open port remains reported until it
// is closed: a server that does not answer is no proof.
func (p *Prober) observe(at port, o door.Observation) {
	o.Text = audit.Clean(o.Text)
	p.mu.Lock()
	before := p.ports[at]
	now := state{Observation: o, reported: o.State}
	switch {
	case o.State != door.Unknown:
	case before.reported == door.Open:
		now = before
	default:
		now.unknown = before.unknown + 1
		if now.unknown < unknownRounds {
			now.reported = cmp.Or(before.reported, door.Unknown)
		}
	}
	p.ports[at] = now
	p.mu.Unlock()
	states := make([]string, len(door.States))
	for i, one := range door.States {
		states[i] = string(one)
	}
	p.o.Metrics.Door(at.node, strconv.Itoa(at.number), string(now.reported), states)
	if now.reported == before.reported {
		return
	}
	log := p.o.Log.With("node", at.node, "port", at.number, "observation", o.Text)
	if now.reported != door.Open {
		log.Info("port of the Machine Config Server", "state", string(now.reported))
		return
	}
	log.Error("the Machine Config Server answers without the gate")
	p.o.Events.Emit(events.Event{
		About:   events.Object{APIVersion: "v1", Kind: "Node", Name: at.node, UID: at.node}, // as in the kubelet's own Events
		Warning: true, Reason: reasonOpen, Message: text(at, o),
	})
}

func text(at port, o door.Observation) string {
	return fmt.Sprintf("port %d of Node %s: %s", at.number, at.node, o.Text)
}

// in returns the ports whose reported state is s.
func (p *Prober) in(s door.State) (texts []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for at, o := range p.ports {
		if o.reported == s {
			texts = append(texts, text(at, o.Observation))
		}
	}
	slices.Sort(texts)
	return texts
}

// Findings returns the open ports: those that answer without the gate.
func (p *Prober) Findings() []view.Finding {
	open := p.in(door.Open)
	if len(open) == 0 {
		return nil
	}
	return []view.Finding{{
		Reason: reasonOpen, Text: "machines receive configs without the gate: " + strings.Join(open, "; "),
	}}
}

// Condition returns DoorOpen as this replica observes it. It has no type before the first round has ended, and
// no status if there is nothing to check.
func (p *Prober) Condition() metav1.Condition {
	p.mu.Lock()
	ready, none, unread := p.ready, p.none, p.unread
	p.mu.Unlock()
	c := metav1.Condition{Type: v1alpha1.ConditionDoorOpen}
	switch open, unknown := p.in(door.Open), p.in(door.Unknown); {
	case !ready && unread:
		c.Status, c.Reason = metav1.ConditionUnknown, reasonNotObserved
		c.Message = "the MachineConfigPools were not read, so it is not known whether there is a control plane to check"
	case none:
		return c
	case !ready:
		return metav1.Condition{}
	case len(open) > 0:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, reasonAnswers, strings.Join(open, "; ")
	case len(unknown) > 0:
		c.Status, c.Reason, c.Message = metav1.ConditionUnknown, reasonNotObserved, strings.Join(unknown, "; ")
	default:
		c.Status, c.Reason = metav1.ConditionFalse, reasonOnlyGate
		c.Message = "each control-plane node answers only through the gate"
	}
	return c
}
