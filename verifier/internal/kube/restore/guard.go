// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	rule "github.com/mcs-attest/mcs-attest/pkg/restore"
	"github.com/mcs-attest/mcs-attest/verifier/internal/keys"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
	"github.com/mcs-attest/mcs-attest/verifier/internal/view"
)

// AnnotationRestoreSeen is an annotation of the AttestationVerifier: the time (RFC 3339) at which an
// administrator acknowledges the restores of etcd until then.
const AnnotationRestoreSeen = "mcs-attest.dev/restore-seen"

// acknowledgementSkew is the maximum time that an acknowledgement may be ahead of this process's clock.
const acknowledgementSkew = 5 * time.Minute

// tokenProbe is the interval of probes while there is a provisioning token. Two probes may fail.
const tokenProbe = 4 * time.Second

// Memory is what was in force when a restore was detected.
type Memory struct {
	// View has the policies, reference values and anchors. It is nil before the policies were read.
	View *view.View
	// Machines and Enrollments are the existing ones, by UID. They are nil if not all were read.
	Machines    map[string]rule.Known
	Enrollments map[string]v1alpha1.MachineAttestationSpec
	// Latches are the states that the records must not lose, by the UID that names the record.
	Latches map[string]rule.Latch
	Token   provisioning.View
	Keys    []string // the ids of all keys that were ever read
}

// Options configure a Guard. All but ProvisioningSecret are required.
type Options struct {
	Log *slog.Logger
	Now func() time.Time
	API client.Reader
	// Probe is the interval of the probes of the API.
	Probe time.Duration
	// TokenInUse reports whether a provisioning token exists. Then the API is probed more often.
	TokenInUse func() bool
	// ProvisioningSecret is the name of the Secret of the provisioning token, or empty if none is
	// configured.
	ProvisioningSecret string
	// Repairs is whether this process has a [Reconciler].
	Repairs bool
	// Remember returns what is in force.
	Remember func() Memory
	// Void invalidates the keys and the provisioning token in use.
	Void func()
	// Reset marks all sources as not read yet.
	Reset func()
	// Reread makes all sources read again.
	Reread func()
}

// Guard holds the memory of a restore until an administrator acknowledges the restore. It is safe for concurrent use.
type Guard struct {
	*Detector
	o       Options
	trigger *kube.Trigger // of the Reconciler

	mu       sync.Mutex
	memory   *Memory // nil if the API's state is in force
	restores []notice
	future   string                // an acknowledgement that is too far ahead, or empty
	withheld map[string]bool       // UIDs of objects that are not accepted
	token    *rule.Token           // nil if the API's provisioning token is in force
	since    uint32                // the epoch of token
	void     map[string]bool       // ids of keys that were read before a restore was noticed
	renewed  time.Time             // keys from before this time are also from before a restore
	latches  map[string]rule.Latch // to be repaired
	repaired bool                  // the latches are in the records, and new keys exist
	rekeyed  bool                  // each of latches was tried once, and new keys exist
	// missing has those of latches whose record was not seen with the state.
	missing map[string]rule.Latch
	// removed has the latches that a record had again and then lost. They are repaired as well.
	removed map[string]rule.Latch
	// rereading is true between the detection and the time when the sources are marked as not read: the
	// cached state is outdated.
	rereading bool
}

// New returns a guard without restores.
func New(o Options) *Guard {
	g := &Guard{o: o, void: map[string]bool{}, repaired: true, rekeyed: true, trigger: &kube.Trigger{
		All: func() []reconcile.Request { return []reconcile.Request{{}} }, Interval: again,
	}}
	g.Detector = &Detector{API: o.API, Now: o.Now, Clock: time.Now, Noticed: g.hold, Reread: func() {
		o.Reset()
		g.mu.Lock()
		g.rereading = false
		g.mu.Unlock()
		g.trigger.Enqueue(kube.PriorityRevoke, reconcile.Request{})
		o.Reread()
	}}
	return g
}

// Run periodically probes the API, because an open watch does not report a restore, and reads the
// acknowledgement. It ends with ctx.
func (g *Guard) Run(ctx context.Context) {
	last, pause := time.Now(), wait.Jitter(g.o.Probe/2, 1)
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(min(pause, wait.Jitter(tokenProbe/2, 1))):
		}
		if time.Since(last) < pause && !g.o.TokenInUse() && !g.Unacknowledged() {
			continue
		}
		last, pause = time.Now(), wait.Jitter(g.o.Probe/2, 1)
		g.ReadAcknowledgement(ctx)
		if err := g.Probe(ctx); err != nil && ctx.Err() == nil {
			g.o.Log.Debug("probe", "error", err)
		}
	}
}

// hold starts to hold what is in force. The repairs of an earlier restore are still required.
func (g *Guard) hold(at, current time.Time, why string) {
	m := g.o.Remember()
	g.mu.Lock()
	if before := g.memory; before != nil {
		if before.View != nil {
			m.View = before.View
		}
		if m.Machines == nil {
			m.Machines, m.Enrollments = before.Machines, before.Enrollments
		}
	}
	g.memory = &m
	g.restores = append(g.restores, newNotice(at, current, why))
	g.withheld = map[string]bool{}
	// The map may be in use, so it is cloned.
	latches := maps.Clone(m.Latches)
	if latches == nil {
		latches = map[string]rule.Latch{}
	}
	for _, left := range []map[string]rule.Latch{g.latches, g.removed} {
		for uid, l := range left {
			latches[uid] = l.Stricter(latches[uid])
		}
	}
	g.latches, g.missing, g.repaired, g.rekeyed, g.rereading = latches, maps.Clone(latches), false, false, true
	m.Latches, g.removed = maps.Clone(latches), nil
	switch {
	case g.o.ProvisioningSecret == "":
	case g.token == nil:
		g.token = &rule.Token{Before: m.Token}
	default:
		g.token = &rule.Token{Before: g.token.Before}
	}
	g.since = g.Epoch() + 1
	for _, id := range m.Keys {
		g.void[id] = true
	}
	// The backup is from before the time at which the inventory was last current. It may also contain
	// keys that were replaced before, and that this process never read.
	if current.IsZero() {
		current = at
	}
	// One clock may be fast and the other one slow.
	g.renewed = current.Add(-2 * keys.ClockSkew).Truncate(time.Second)
	g.mu.Unlock()
	g.o.Void()
	g.o.Log.Error("etcd went back to an earlier time: all keys are void, earlier revocations are repeated, and nothing "+
		"becomes less strict until an administrator acknowledges the restore", "why", why, "latches", len(latches))
}

// ReadAcknowledgement reads whether the restore is acknowledged. Each process with a memory must know
// that.
func (g *Guard) ReadAcknowledgement(ctx context.Context) {
	if !g.Unacknowledged() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var v v1alpha1.AttestationVerifier
	if err := g.o.API.Get(ctx, client.ObjectKey{Name: v1alpha1.VerifierName}, &v); err != nil {
		g.o.Log.Debug("read the acknowledgement of the restore of etcd", "error", err)
		return
	}
	g.Acknowledge(v.Annotations)
}

// Acknowledge releases the memory if the annotations of the AttestationVerifier acknowledge the last
// restore. Then everything is read again, because parts of it were not accepted. A time too far ahead
// is ignored, because it would acknowledge future restores.
func (g *Guard) Acknowledge(annotations map[string]string) {
	at, err := time.Parse(time.RFC3339, annotations[AnnotationRestoreSeen])
	g.mu.Lock()
	g.future = ""
	if err == nil && at.After(g.o.Now().Add(acknowledgementSkew)) {
		g.future = at.UTC().Format(time.RFC3339)
	}
	if err != nil || g.future != "" {
		g.mu.Unlock()
		return
	}
	g.restores = slices.DeleteFunc(g.restores, func(n notice) bool { return n.acknowledged(at) })
	if g.memory == nil || len(g.restores) > 0 {
		g.mu.Unlock()
		return
	}
	g.memory, g.token, g.withheld, g.missing, g.removed = nil, nil, nil, nil, nil
	if !g.o.Repairs { // it cannot replace keys, and may have read the new ones before it noticed the restore
		clear(g.void)
	}
	g.mu.Unlock()
	g.o.Log.Info("the restore of etcd is acknowledged: policies, anchors, reference values, enrollments, grants and " +
		"the provisioning token are in force as in the API")
	g.o.Reread()
}

// Unacknowledged reports whether any detected restore is not acknowledged.
func (g *Guard) Unacknowledged() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.memory != nil
}

// HoldsPolicies reports whether the policies, reference values and anchors of the memory are in force.
func (g *Guard) HoldsPolicies() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.memory != nil && g.memory.View != nil
}

// View replaces the policies, reference values and anchors of a view with those of the memory, and
// reports whether it did.
func (g *Guard) View(v *view.View) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.memory == nil || g.memory.View == nil {
		return false
	}
	held := g.memory.View
	v.Policies, v.References, v.EKRoots, v.Trust = held.Policies, held.References, held.EKRoots, held.Trust
	return true
}

// Machine returns the state of a Machine that is in force, or false if the Machine is not accepted.
func (g *Guard) Machine(m machine.Machine) (machine.Machine, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.memory == nil || g.memory.Machines == nil {
		return m, true
	}
	if before, ok := g.memory.Machines[m.UID]; ok {
		return rule.Machine(before, m), true
	}
	return m, g.isNew(m.UID, m.Created)
}

// isNew reports whether an object that is not in the memory is newer than the backup. The caller holds
// the lock.
func (g *Guard) isNew(uid string, created time.Time) bool {
	if !g.restores[len(g.restores)-1].contains(created) {
		return true
	}
	g.withheld[uid] = true
	return false
}

// Enrollment returns the state of an enrollment that is in force, or false if the enrollment is not
// accepted.
func (g *Guard) Enrollment(e machine.Enrollment) (machine.Enrollment, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.memory == nil {
		return e, true
	}
	uid := string(e.UID)
	before, known := g.memory.Enrollments[uid]
	if known {
		return e.WithSpec(rule.Enrollment(before, e.Spec)), true
	}
	if g.memory.Enrollments == nil || !e.CreationTimestamp.IsZero() && g.isNew(uid, e.CreationTimestamp.Time) {
		spec := e.Spec
		spec.Reattest = nil // a grant waits for the acknowledgement
		return e.WithSpec(spec), true
	}
	spec, more := rule.Unknown(e.Spec)
	if !more {
		delete(g.withheld, uid)
	}
	return e.WithSpec(spec), spec.MachineRef != nil
}

// WithheldGrant reports whether the grant of a MachineAttestation is not in force.
func (g *Guard) WithheldGrant(a *v1alpha1.MachineAttestation) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.memory == nil || a == nil || a.Spec.Reattest == nil {
		return false
	}
	before, known := g.memory.Enrollments[string(a.UID)]
	return !known || !rule.SameGrant(before, a.Spec)
}

// Outdated returns an error while the record named by a UID lacks a state that it must not lose.
// Nothing may then be granted to its Machine. In a process that repairs, an acknowledgement does not
// release a record that could not be repaired.
func (g *Guard) Outdated(uid string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, missing := g.missing[uid]
	_, left := g.latches[uid]
	if missing || left && g.rekeyed && !g.repaired {
		return errUnrepaired
	}
	return nil
}

var errUnrepaired = errors.New("the record does not have the state from before the restore of etcd yet")

// Token reports whether the provisioning token that was read in an epoch is in force, and returns the
// state with which it must be compared. data is the content of its Secret, or nil if it does not exist.
// known is the token in force.
func (g *Guard) Token(epoch uint32, known provisioning.View, data map[string][]byte) (provisioning.View, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.token == nil {
		return known, true
	}
	if epoch < g.since {
		return provisioning.View{}, false // from before the restore
	}
	known, ok := g.token.Accept(g.o.Now(), data)
	if ok {
		g.token = nil
	}
	return known, ok
}

// HoldsToken reports whether no provisioning token is accepted.
func (g *Guard) HoldsToken() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.token != nil
}

// Voided reports whether a key of a pair is from before a restore: it was created then, or this process had read it
// when it noticed the restore. Without Repairs, the latter is so until the restore is acknowledged. New keys from a
// replica that was faster are not void.
func (g *Guard) Voided(pair keys.Pair) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.ContainsFunc(pair.IDs(), func(id string) bool { return g.void[id] }) ||
		!g.renewed.IsZero() && pair.MadeBefore(g.renewed)
}

// Problems returns the restores that are not acknowledged, for the condition Degraded with the reason
// EtcdRestored. The texts do not depend on the time.
func (g *Guard) Problems() (texts []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	held := ""
	if g.memory != nil && g.memory.View != nil {
		held = "; policies, reference values, trust anchors and grants from before it stay in force"
	}
	if n := len(g.withheld); n > 0 {
		held += fmt.Sprintf("; %d restored Machines and enrollments are not accepted", n)
	}
	if g.token != nil {
		held += fmt.Sprintf("; the provisioning token in Secret %s is not the one that was in force, and is not accepted "+
			"until a new one is made (token provisioning rotate --now) or this is acknowledged", g.o.ProvisioningSecret)
	}
	if g.future != "" {
		held += fmt.Sprintf("; the time %s is in the future and acknowledges nothing", g.future)
	}
	for _, n := range g.restores {
		texts = append(texts, fmt.Sprintf("at %s etcd went back to an earlier time (%s); keys were renewed and "+
			"latches were set again%s; review policies, quarantines, enrollments, grants and the CA bundle, "+
			"then annotate this object with %s=TIME, the current time in RFC 3339",
			n.at.UTC().Format(time.RFC3339), n.why, held, AnnotationRestoreSeen))
	}
	return texts
}
