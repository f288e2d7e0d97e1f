// SPDX-License-Identifier: Apache-2.0

// Package rehearse lets the Nodes of a cluster rehearse their provisioning, for the command "kubectl attest rehearse".
//
// For each machine it does the following, in this order:
//
//   - skip a machine that is quarantined or being deleted, or that is not a Node;
//   - check the pointer config in its user data, and its provisioning token;
//   - open the rehearsal: write the hash of a new ticket into the machine's MachineAttestation;
//   - run the agent on the Node, in a pod that reads the ticket and the pointer config, without its tokens, from
//     standard input;
//   - read the result, which the verifier writes into the MachineAttestation;
//   - remove the ticket and delete the pod, also after an interruption.
//
// Only the verifier's record says whether a machine would pass. The output of the agent is untrusted. It is shown if
// the verifier recorded nothing, because it says why the Node did not reach the verifier.
package rehearse

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/rehearsal"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
)

// The results.
const (
	Passed  = "pass"
	Failed  = "FAIL"
	Unknown = "unknown" // the rehearsal did not take place
)

// Result is that of one machine.
type Result struct {
	Machine string `json:"machine"`
	Node    string `json:"node,omitempty"`
	Pool    string `json:"pool,omitempty"`
	// Result is [Passed], [Failed] or [Unknown].
	Result string `json:"result"`
	// Reason is one of package reason's. Of a machine that did not rehearse, it says why the verifier would deny it
	// whatever it proves, if that is known.
	Reason   string   `json:"reason,omitempty"`
	Message  string   `json:"message,omitempty"`
	Fix      string   `json:"fix,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
	// Time is when the verifier recorded the result. It is nil if the verifier recorded none.
	Time         *time.Time `json:"time,omitempty"`
	AgentVersion string     `json:"agentVersion,omitempty"`
}

const (
	// ticketLife is how long a ticket is valid if it is not removed before. A clock that differs from the verifier's
	// by less than half an hour does no harm: the verifier accepts at most an hour.
	ticketLife = 30 * time.Minute
	// MaxTimeout is the longest time for the rehearsal of one machine.
	MaxTimeout = ticketLife
	// MaxParallel is the largest number of machines that rehearse at the same time.
	MaxParallel = 50
	// cleanup is the time to remove a ticket and a pod after an interruption.
	cleanup = 20 * time.Second
)

// Options say how machines rehearse.
type Options struct {
	Cluster  *operator.Cluster
	Parallel int
	// Timeout is that of one machine.
	Timeout time.Duration
	// Image contains the agents. If it is empty, it is the image of the cluster's verifier.
	Image string
	// Pointer is the pointer config of machines whose Machine names no Secret.
	Pointer secret.Bytes
	// Started and Done are called for each machine, one call at a time.
	Started func(machine string)
	Done    func(Result)
}

// runner is what the rehearsals of one command share.
type runner struct {
	Options
	api         kubernetes.Interface
	rest        *rest.Config
	pullSecrets []corev1.LocalObjectReference
	pointers    *pointers
	mu          sync.Mutex
}

// Run lets the machines rehearse. It returns a result for each one, in the order of all. The error is about what all
// machines need: then no machine rehearsed.
func Run(ctx context.Context, o Options, all []operator.Rehearsable) ([]Result, error) {
	r := &runner{Options: o, rest: o.Cluster.Rest()}
	var err error
	if r.api, err = kubernetes.NewForConfig(r.rest); err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	config, err := o.Cluster.Configuration(ctx)
	if err != nil {
		return nil, err
	}
	r.pointers = newPointers(ctx, o.Cluster, config.Origins)
	if err := r.verifierImage(ctx); err != nil {
		return nil, err
	}
	if err := r.deleteFinished(ctx); err != nil {
		return nil, err
	}
	results := make([]Result, len(all))
	var g errgroup.Group
	g.SetLimit(o.Parallel)
	for i, m := range all {
		g.Go(func() error {
			if ctx.Err() == nil {
				r.call(func() { r.Started(m.Name) })
			}
			results[i] = r.machine(ctx, m)
			if ctx.Err() == nil {
				r.call(func() { r.Done(results[i]) })
			}
			return nil
		})
	}
	return results, g.Wait()
}

func (r *runner) call(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

// machine lets one machine rehearse.
func (r *runner) machine(ctx context.Context, m operator.Rehearsable) Result {
	out := Result{Machine: m.Name, Node: m.NodeRef, Pool: audit.Clean(strings.Join(m.Pools, ","))}
	limited, stop := context.WithTimeout(ctx, r.Timeout)
	defer stop()
	err := r.rehearse(limited, m, &out)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		out.unknown(errors.New("it was interrupted"))
	case limited.Err() != nil:
		out.unknown(hint.New(fmt.Errorf("no result after %v: %w", r.Timeout, err),
			"check that the Node can start pods, or give a slow TPM more time by --timeout"))
	default:
		out.unknown(err)
	}
	return out
}

func (r *runner) rehearse(ctx context.Context, m operator.Rehearsable, out *Result) error {
	if err := m.Denied(); err != nil {
		out.Reason = reason.From(err).Code.String()
		return hint.New(errors.New(reason.From(err).Code.Info().Title), "%s", reason.From(err).Code.Info().Hint)
	}
	if m.NodeRef == "" {
		return hint.New(errors.New("it is not a Node, so nothing can run on it"),
			"a machine rehearses after it has joined")
	}
	config, err := r.pointerConfig(ctx, m, out)
	if err != nil || out.Result != "" {
		return err
	}
	node, err := r.node(ctx, m.NodeRef)
	if err != nil {
		return err
	}
	ticket, err := rehearsal.NewTicket(rand.Reader)
	if err != nil {
		return err
	}
	opened, err := r.Cluster.OpenRehearsal(ctx, m, rehearsal.TicketHash(ticket.Expose()), time.Now().Add(ticketLife))
	if err != nil {
		return err
	}
	defer func() {
		ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
		defer stop()
		if err := r.Cluster.CloseRehearsal(ctx, opened); err != nil {
			out.Warnings = append(out.Warnings, fmt.Sprintf("its ticket was not removed, and is valid for at most %v: %v",
				ticketLife, err))
		}
	}()
	p := &pod{runner: r, node: node, name: podPrefix + opened.TicketSHA256[:16], machine: m.Name}
	defer func() {
		ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
		defer stop()
		if err := p.delete(ctx); err != nil {
			out.Warnings = append(out.Warnings, err.Error())
		}
	}()
	order := rehearsal.Order{Ticket: ticket, Pointer: config}
	podErr := p.run(ctx, order.Encode())
	// The record counts also if the connection to the pod broke.
	last, stop := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
	defer stop()
	status, err := r.Cluster.Rehearsed(last, opened)
	switch {
	case err != nil:
		return err
	case status != nil:
		out.recorded(status)
		return nil
	case podErr != nil:
		return podErr
	}
	return p.said()
}

// recorded takes the result from a record.
func (o *Result) recorded(s *v1alpha1.MachineAttestationStatus) {
	result := s.Rehearsal
	at := result.Time.UTC()
	o.Time, o.Pool, o.AgentVersion = &at, audit.Clean(result.Pool), audit.Clean(result.AgentVersion)
	for _, w := range result.Warnings {
		o.Warnings = append(o.Warnings, audit.Clean(w))
	}
	if result.Passed {
		o.Result = Passed
		return
	}
	o.failed(result.Reason, "", "")
	for _, c := range s.Conditions {
		if c.Type == v1alpha1.ConditionRehearsed {
			o.Message = audit.Clean(strings.TrimPrefix(c.Message, result.Reason+": "))
		}
	}
}

// failed sets a reason. Without a message or a fix, they are those of the reason's table.
func (o *Result) failed(code, message, fix string) {
	o.Result, o.Reason, o.Message, o.Fix = Failed, audit.Clean(code), message, fix
	if c, ok := reason.Parse(code); ok {
		info := c.Info()
		if message == "" {
			o.Message = info.Title
		}
		if fix == "" {
			o.Fix = info.Hint
		}
	}
}

// unknown sets why the rehearsal did not take place.
func (o *Result) unknown(err error) {
	o.Result, o.Message = Unknown, audit.Clean(err.Error())
	if h, ok := errors.AsType[*hint.Error](err); ok {
		o.Fix = h.Hint
	}
}

// Count returns the number of results of each kind.
func Count(all []Result) (passed, failed, unknown int) {
	for _, r := range all {
		switch r.Result {
		case Passed:
			passed++
		case Failed:
			failed++
		default:
			unknown++
		}
	}
	return passed, failed, unknown
}

// Sort puts what needs an administrator first.
func Sort(all []Result) {
	order := []string{Failed, Unknown, Passed}
	slices.SortStableFunc(all, func(a, b Result) int {
		return slices.Index(order, a.Result) - slices.Index(order, b.Result)
	})
}
