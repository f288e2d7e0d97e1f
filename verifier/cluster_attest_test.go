// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester/swtpmtest"
	"github.com/mcs-attest/mcs-attest/pkg/pki"
	"github.com/mcs-attest/mcs-attest/testvm/cluster"
	"github.com/mcs-attest/mcs-attest/verifier/internal/backend"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/controller"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/serve"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/front"
	"github.com/mcs-attest/mcs-attest/verifier/internal/listen"
	"github.com/mcs-attest/mcs-attest/verifier/internal/server"
)

var eventsResource = schema.GroupVersionResource{Version: "v1", Resource: "events"}

// inCluster is a cluster with replicas in this process: with the race detector, and
// with clocks of their own.
func inCluster(t *testing.T) *replicas {
	t.Helper()
	return newReplicas(t, cluster.StartShared(t), 0)
}

// serve adds a replica in this process whose clock is off by skew: a front, and a controller.
func (rs *replicas) serve(skew time.Duration, more ...string) *inProcess {
	rs.t.Helper()
	dir := rs.t.TempDir()
	text := fmt.Sprintf("origins: [%q]\nrequestsPerSecond: 10000\nupstream: https://%s\nupstreamName: mcs.test\n"+
		"kubernetes:\n  machineNamespaces: [%s]\n  kubeconfig: %s\n%s",
		testOrigin, rs.mcs, strings.Join(append([]string{machineNamespace}, rs.namespaces...), ", "), rs.kubeconfig,
		strings.Join(more, ""))
	path := filepath.Join(dir, "mcs-attest.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		rs.t.Fatal(err)
	}
	c, err := config.Load(path)
	if err != nil {
		rs.t.Fatal(err)
	}
	p := &inProcess{rs: rs, log: &lockedBuffer{}}
	log := slog.New(slog.NewJSONHandler(p.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	stands := rs.stands
	now := func() time.Time {
		if !stands.IsZero() {
			return stands.Add(skew)
		}
		return time.Now().Add(skew)
	}
	s, err := serve.New(c, log, now, version)
	if err != nil {
		rs.t.Fatal(err)
	}
	control := *c
	control.Kubernetes = ptr.To(*c.Kubernetes)
	control.Kubernetes.Kubeconfig = rs.controllerKubeconfig
	var controllers *controllers.Process
	if p.controller, controllers, err = controller.New(&control, log, now, version); err != nil {
		rs.t.Fatal(err)
	}
	p.server = s
	h, err := s.Handler(context.Background())
	if err != nil {
		rs.t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		rs.t.Fatal(err)
	}
	p.addr = l.Addr().String()
	srv := listen.NewServer(h, s.Certificates, s.Log)
	srv.ReadHeaderTimeout = handshakeTime
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(listen.Encrypt(listen.Limit(l, c.MaxConnections, nil), srv.TLSConfig)) })
	wg.Go(func() {
		if err := s.Run(ctx); err != nil && ctx.Err() == nil {
			rs.t.Errorf("replica: %v", err)
		}
	})
	wg.Go(func() {
		if err := controllers.Run(ctx); err != nil && ctx.Err() == nil {
			rs.t.Errorf("controller: %v", err)
		}
	})
	p.stop = sync.OnceFunc(func() {
		cancel()
		_ = srv.Close()
		wg.Wait()
	})
	rs.t.Cleanup(p.stop)
	rs.t.Cleanup(func() {
		if rs.t.Failed() {
			rs.t.Logf("replica %s ends with:\n%s", p.addr, tail(p.log.everything(), 30))
		}
	})
	// Ready, and what was read is taken up.
	eventually(rs.t, func() bool { return len(s.Problems()) == 0 && s.View().Stale == nil },
		func() string { return fmt.Sprint("not ready: ", s.Problems()) })
	return p
}

// inProcess is a replica in this process.
type inProcess struct {
	rs     *replicas
	server *server.Server
	addr   string
	// controller has the parts of the controller.
	controller *backend.Parts
	log        *lockedBuffer
	stop       func()
}

func (p *inProcess) node(keys nodeKeys) *loadNode {
	return &loadNode{addr: p.addr, origin: testOrigin, roots: p.rs.roots, pool: "worker", keys: keys}
}

// saw waits until the replica has written this reason.
func (p *inProcess) saw(reason string) {
	p.rs.t.Helper()
	eventually(p.rs.t, func() bool { return strings.Contains(p.log.everything(), `"reason":"`+reason+`"`) },
		func() string { return "no " + reason + " in the audit log" })
}

// attests waits until the machine gets in: what was just written may not have been
// watched yet.
func (p *inProcess) attests(n *loadNode) (token string) {
	p.rs.t.Helper()
	var err error
	eventually(p.rs.t, func() bool {
		token, _, err = n.attest(context.Background())
		return err == nil
	}, func() string { return fmt.Sprint("the machine does not get in: ", err) })
	return token
}

func (p *inProcess) fetch(token string) (int, string) {
	p.rs.t.Helper()
	status, body, err := p.rs.fetch(context.Background(), p.addr, "/config/worker", token)
	if err != nil {
		p.rs.t.Fatal(err)
	}
	return status, body
}

// finally is fetch until the answer is not 503, which machines repeat and a slow API server may cause.
func (p *inProcess) finally(token string) (status int, body string) {
	p.rs.t.Helper()
	eventually(p.rs.t, func() bool {
		status, body = p.fetch(token)
		return status != http.StatusServiceUnavailable
	}, func() string { return "503: " + body })
	return status, body
}

// refuses waits until the machine is denied permanently. No attestation may succeed meanwhile.
func (p *inProcess) refuses(n *loadNode) {
	p.rs.t.Helper()
	var err error
	eventually(p.rs.t, func() bool {
		if _, _, err = n.attest(context.Background()); err == nil {
			p.rs.t.Fatal("the machine gets in")
		}
		return denied(err)
	}, func() string { return fmt.Sprint("not denied permanently: ", err) })
}

// events are the reasons of the Events of an object.
func (rs *replicas) events(uid string) (reasons []string) {
	rs.t.Helper()
	list, err := rs.client.Resource(eventsResource).Namespace(machineNamespace).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		rs.t.Fatal(err)
	}
	for _, e := range list.Items {
		about, _ := e.Object["involvedObject"].(map[string]any)
		if about["uid"] == uid {
			reasons = append(reasons, fmt.Sprint(e.Object["reason"]))
		}
	}
	return reasons
}

func (rs *replicas) hasEvents(uid string, want ...string) {
	rs.t.Helper()
	eventually(rs.t, func() bool {
		have := rs.events(uid)
		return !slices.ContainsFunc(want, func(w string) bool { return !slices.Contains(have, w) })
	}, func() string { return fmt.Sprintf("Events %v, want %v", rs.events(uid), want) })
}

// patch changes a Machine.
func (rs *replicas) patch(resource schema.GroupVersionResource, name, patch string, sub ...string) {
	rs.t.Helper()
	_, err := rs.client.Resource(resource).Namespace(machineNamespace).Patch(context.Background(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, sub...)
	if err != nil {
		rs.t.Fatal(err)
	}
}

func soft(t *testing.T) *softKeys {
	t.Helper()
	k, err := newSoftKeys()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func denied(err error) bool {
	var e *connect.Error
	return errors.As(err, &e) && e.Code() == connect.CodePermissionDenied
}

// A first boot in the cluster: the Machine comes, attests at one replica, fetches at
// another, becomes a Node. The record and the Machine's Events tell of it, and no
// secret is in either.
func TestClusterFirstBoot(t *testing.T) {
	rs := inCluster(t)
	a, b := rs.serve(0), rs.serve(0)
	keys := soft(t)
	n := a.node(keys)
	if _, _, err := n.attest(t.Context()); err == nil || denied(err) {
		t.Fatalf("before there is a Machine: %v, want a temporary no", err)
	}
	m := rs.machine("first-boot", keys.spki)
	uid := string(m.GetUID())
	token := a.attests(n)
	if status, body := b.fetch(token); status != 200 || body != fullConfig {
		t.Fatalf("the other replica's gate answers %d %q", status, body)
	}
	rec := rs.record(uid)
	if rec == nil || rec.Status.Phase != v1alpha1.PhaseFetched ||
		rec.Status.Identity.EKSHA256 != hex.EncodeToString(keys.spki[:]) || rec.Status.Token.Uses != 1 {
		t.Fatalf("record %+v", rec)
	}
	if len(rec.OwnerReferences) != 1 || string(rec.OwnerReferences[0].UID) != uid {
		t.Errorf("the record's owners: %v", rec.OwnerReferences)
	}
	rs.hasEvents(uid, "Attested", "Fetched")
	rs.patch(machinesResource, "first-boot", `{"status":{"phase":"Running","nodeRef":{"kind":"Node","name":"first-boot"}}}`, "status")
	eventually(t, func() bool { return rs.record(uid).Status.Phase == v1alpha1.PhaseJoined },
		func() string { return "the record does not latch Joined" })
	rs.hasEvents(uid, "Joined")
	b.refuses(n) // it joined
	if status, _ := b.fetch(token); status != http.StatusUnauthorized {
		t.Errorf("the token after it joined: %d", status)
	}
	for what, text := range map[string]string{"the log": a.log.everything() + b.log.everything(),
		"the record": fmt.Sprint(rs.record(uid))} {
		if strings.Contains(text, token) || strings.Contains(text, "full-config-secret") {
			t.Errorf("%s holds a secret", what)
		}
	}
}

// A Machine whose labels name no pool has that of the pointer config in its own
// user-data secret (status row E8); another's pool it has not.
func TestClusterPoolOfTheUserDataSecret(t *testing.T) {
	rs := inCluster(t)
	rs.cluster.KubectlApply(t, object("v1", "Secret", machineNamespace, "worker-user-data",
		map[string]any{"stringData": map[string]any{
			"userData": `{"ignition":{"version":"3.2.0","config":{"merge":[{"source":"` + testOrigin + `/config/infra"}]}}}`,
		}}))
	p := rs.serve(0)
	keys := soft(t)
	rs.machine("infra", keys.spki)
	n := p.node(keys)
	n.pool = "infra"
	p.attests(n)
	n.pool = "master"
	p.refuses(n)
	p.saw("MachinePool")
}

// Attack T42: a second identity for a Machine that has one.
func TestAttack_T42_SecondIdentityInTheCluster(t *testing.T) {
	rs := inCluster(t)
	p := rs.serve(0)
	holder, challenger := soft(t), soft(t)
	m := rs.machine("contested", holder.spki)
	uid := string(m.GetUID())
	token := p.attests(p.node(holder))
	rs.patch(machinesResource, "contested", fmt.Sprintf(`{"metadata":{"annotations":{%q:"%x,%x"}}}`, v1alpha1.AnnotationEKSHA256, holder.spki, challenger.spki))
	eventually(t, func() bool {
		_, _, err := p.node(challenger).attest(t.Context())
		return denied(err)
	}, func() string { return "the second identity is not refused for good" })
	p.saw("IdentityConflict")
	rs.hasEvents(uid, "Attested", "Conflict")
	if rec := rs.record(uid); rec.Status.Identity.EKSHA256 != hex.EncodeToString(holder.spki[:]) {
		t.Errorf("the record has %s", rec.Status.Identity.EKSHA256)
	}
	if status, _ := p.fetch(token); status != 200 {
		t.Errorf("the rightful holder is locked out: %d", status)
	}
}

// Attack T53: the clock of one replica is five minutes off, either way. Tokens and
// challenges of one are good at the other.
func TestAttack_T53_ReplicasClockIsOff(t *testing.T) {
	rs := inCluster(t)
	for name, skew := range map[string]time.Duration{"ahead": 4*time.Minute + 50*time.Second,
		"behind": -4*time.Minute - 50*time.Second} {
		right, wrong := rs.serve(0), rs.serve(skew)
		for where, p := range map[string][2]*inProcess{"from the wrong to the right": {wrong, right},
			"from the right to the wrong": {right, wrong}} {
			keys := soft(t)
			rs.machine(strings.ReplaceAll(name+" "+where, " ", "-"), keys.spki)
			token := p[0].attests(p[0].node(keys))
			if status, body := p[1].fetch(token); status != 200 {
				t.Errorf("a clock that is %s, %s: %d %s", name, where, status, body)
			}
		}
	}
}

// The clock of the replica that makes the first keys is nine hours ahead, and then that of
// another one is nine hours behind. The others serve, and accept each other's tokens.
func TestAttack_T53_KeysOfAReplicaWhoseClockIsHoursOff(t *testing.T) {
	rs := inCluster(t)
	secrets := rs.client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "secrets"}).Namespace(ownNamespace)
	if err := secrets.Delete(t.Context(), "mcs-attest-keys", metav1.DeleteOptions{}); err != nil &&
		!kerrors.IsNotFound(err) {
		t.Fatal(err)
	}
	ahead := rs.serve(9 * time.Hour)
	one, two := rs.serve(0), rs.serve(0)
	served := func(name string) {
		t.Helper()
		keys := soft(t)
		rs.machine(name, keys.spki)
		token := one.attests(one.node(keys))
		if status, body := two.fetch(token); status != 200 {
			t.Errorf("%s: %d %s", name, status, body)
		}
	}
	served("while-a-clock-is-ahead")
	if len(ahead.server.Problems()) > 0 {
		t.Errorf("the replica whose clock is ahead has no keys: %q", ahead.server.Problems())
	}
	ahead.stop()
	behind := rs.serve(-9 * time.Hour)
	served("while-a-clock-is-behind")
	// The first keys serve all of them. No replica makes others.
	for _, p := range []*inProcess{one, two, behind} {
		if n := len(p.server.TokenKeys().Keys); n != 1 {
			t.Errorf("a replica has %d token keys", n)
		}
	}
}

// Attack T43: many concurrent attestations of one Machine, on three replicas, with two
// identities that are both enrolled. One identity wins, whichever; the other is told
// so; nothing of the loser is left.
func TestAttack_T43_TwoIdentitiesRaceOnThreeReplicas(t *testing.T) {
	rs := inCluster(t)
	rs.stands = time.Now() // after 5 seconds there may be a second token
	all := []*inProcess{rs.serve(0), rs.serve(0), rs.serve(0)}
	one, two := soft(t), soft(t)
	m := rs.machine("raced", one.spki)
	rs.patch(machinesResource, "raced", fmt.Sprintf(`{"metadata":{"annotations":{%q:"%x,%x"}}}`, v1alpha1.AnnotationEKSHA256, one.spki, two.spki))
	for _, p := range all {
		eventually(t, func() bool { return p.server.View().Machines.Enrolled(two.spki) },
			func() string { return "the second EK is not seen" })
	}
	var mu sync.Mutex
	granted := map[*softKeys]int{}
	tokens := map[*softKeys]string{}
	var race sync.WaitGroup
	for i := range 24 { // two more of each replica remain for refuses: the limit is ten for one Machine
		race.Go(func() {
			keys := []*softKeys{one, two}[i%2]
			token, _, err := all[i%3].node(keys).attest(context.Background())
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				granted[keys]++
				tokens[keys] = token
			}
		})
	}
	race.Wait()
	if len(granted) != 1 {
		t.Fatalf("%d identities were granted a token", len(granted))
	}
	for keys, n := range granted {
		if n != 1 {
			t.Errorf("%d tokens within the time in which there may be one", n)
		}
		if rec := rs.record(string(m.GetUID())); rec.Status.Identity.EKSHA256 != hex.EncodeToString(keys.spki[:]) {
			t.Errorf("the record has another identity than the one that was granted")
		}
		if status, _ := all[0].fetch(tokens[keys]); status != 200 {
			t.Errorf("the winner's token: %d", status)
		}
		loser := one
		if keys == one {
			loser = two
		}
		all[1].refuses(all[1].node(loser))
	}
}

// Attack T44: behind a front end that ends TLS, a challenge of one replica may be
// answered at another, once. The second answer is refused wherever it goes.
func TestAttack_T44_OneChallengeAnsweredAtTwoReplicas(t *testing.T) {
	rs := inCluster(t)
	all := []*inProcess{rs.serve(0), rs.serve(0), rs.serve(0)}
	spki := sha256.Sum256(all[0].server.Certificates.Current().Leaf.RawSubjectPublicKeyInfo)
	rs.cluster.KubectlApply(t, object(v1alpha1.APIVersion, v1alpha1.KindAttestationPolicy, "", "audit-everything",
		map[string]any{"spec": map[string]any{
			"pools": []any{"*"}, "binding": "Terminated", "frontEndKeys": []any{hex.EncodeToString(spki[:])},
		}}))
	for _, p := range all {
		eventually(t, func() bool {
			policy, err := p.server.View().Policies.For("worker")
			return err == nil && policy.Binding == v1alpha1.BindingTerminated
		}, func() string { return "the binding is not in force" })
	}
	honest := soft(t)
	rs.machine("terminated", honest.spki)
	n := all[0].node(honest)
	n.answerAt = []string{all[1].addr}
	if status, _ := all[2].fetch(all[1].attests(n)); status != 200 {
		t.Fatalf("the honest machine's config: %d", status)
	}
	keys := soft(t)
	rs.machine("terminated-twice", keys.spki)
	for _, p := range all {
		eventually(t, func() bool { return p.server.View().Machines.Enrolled(keys.spki) },
			func() string { return "the Machine is not seen" })
	}
	n = all[0].node(keys)
	n.answerAt = []string{all[1].addr, all[2].addr}
	if _, _, err := n.attest(t.Context()); err == nil {
		t.Fatal("one challenge was answered twice")
	}
	all[2].saw("ChallengeUsed")
	if strings.Contains(all[1].log.everything(), "ChallengeUsed") {
		t.Error("the first answer was the one that was refused")
	}
}

// Attack T45: one token, fifty times concurrently at the gates of three replicas: it is
// answered as often as it has uses.
func TestAttack_T45_OneTokenFiftyTimesOnThreeReplicas(t *testing.T) {
	rs := inCluster(t)
	all := []*inProcess{rs.serve(0), rs.serve(0), rs.serve(0)}
	keys := soft(t)
	m := rs.machine("parallel", keys.spki)
	token := all[0].attests(all[0].node(keys))
	var mu sync.Mutex
	answers := map[int]int{}
	var race sync.WaitGroup
	for i := range 50 {
		race.Go(func() {
			status, _, err := rs.fetch(context.Background(), all[i%3].addr, "/config/worker", token)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				answers[status]++
			}
		})
	}
	race.Wait()
	// A replica that loses the race for the record too often says 503, not 200.
	if answers[200] > 3 || answers[200]+answers[401]+answers[503] != 50 {
		t.Errorf("answers by status: %v", answers)
	}
	for range 3 {
		_, _ = all[1].finally(token)
	}
	if rec := rs.record(string(m.GetUID())); rec.Status.Token.Uses != 3 {
		t.Errorf("%d uses are recorded", rec.Status.Token.Uses)
	}
	// For a while after slow calls the answer is 503: another replica may return uses.
	status := 0
	eventually(t, func() bool {
		status, _ = all[2].fetch(token)
		return status == http.StatusUnauthorized
	}, func() string { return fmt.Sprintf("a token that is used up: %d", status) })
}

// A genuine TPM that is not enrolled waits in the cluster as an object; when an
// administrator writes a pool into it, the machine gets in (status row E13).
func TestClusterMachineWaitsForApproval(t *testing.T) {
	rs := inCluster(t)
	dev := swtpmtest.Start(t, "sha256")
	rs.cluster.KubectlApply(t, object("v1", "ConfigMap", ownNamespace, "roots", map[string]any{
		"metadata": map[string]any{"name": "roots", "namespace": ownNamespace,
			"labels": map[string]any{"mcs-attest.dev/content": "ek-roots"}},
		"data": map[string]any{"swtpm.pem": string(dev.Roots())},
	})+object(v1alpha1.APIVersion, v1alpha1.KindAttestationPolicy, "", "audit-everything",
		map[string]any{"spec": map[string]any{
			"pools": []any{"*"}, "tpm2": map[string]any{"endorsements": []any{"enrolled", "manufacturer"}},
		}}))
	p := rs.serve(0)
	eventually(t, func() bool { return p.server.Backend.(*front.Front).EKRoots().Len() > 0 },
		func() string { return "the roots are not read" })
	n := newNode(t, &verifier{t: t, addr: p.addr, roots: rs.roots}, dev)
	// The first asks may come before everything has been read: those are a wait, too.
	eventually(t, func() bool {
		if _, err := n.again(); err == nil || denied(err) {
			t.Fatalf("it is not enrolled: %v, want a temporary denial", err)
		}
		return strings.Contains(p.log.everything(), `"reason":"PendingApproval"`)
	}, func() string { return "no PendingApproval in the audit log" })
	name := v1alpha1.PendingPrefix + hexOf(n.id.EKSPKI)[:16]
	o, err := rs.client.Resource(recordsResource).Namespace(ownNamespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	rec := rs.decode(o)
	if rec.Status.Pending == nil || rec.Status.Pending.EKSHA256 != hexOf(n.id.EKSPKI) ||
		rec.Status.Phase != v1alpha1.PhasePending {
		t.Fatalf("what waits: %+v", rec.Status)
	}
	patch := fmt.Sprintf(`{"spec":{"pool":"worker","ekSHA256":[%q]}}`, hexOf(n.id.EKSPKI))
	if _, err := rs.client.Resource(recordsResource).Namespace(ownNamespace).Patch(t.Context(), name, types.MergePatchType,
		[]byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	var token string
	eventually(t, func() bool {
		res, err := n.again()
		token = res.GetToken()
		return err == nil
	}, func() string { return "approved, and it does not get in" })
	if status, _ := p.fetch(token); status != 200 {
		t.Errorf("the gate answers %d", status)
	}
	o, err = rs.client.Resource(recordsResource).Namespace(ownNamespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil || rs.decode(o).Status.Phase != v1alpha1.PhaseFetched {
		t.Errorf("the record of one that stands in for a Machine: %v, %v", o, err)
	}
}

// Switching a pool between Off, Audit and Enforce refuses no machine that has a
// token (status row F8), and takes effect for one that has none.
func TestClusterModesSwitchWithoutALostRequest(t *testing.T) {
	rs := inCluster(t)
	p := rs.serve(0)
	for i, mode := range []string{"Audit", "Off", "Enforce", "Audit", "Enforce"} {
		keys := soft(t)
		rs.machine(fmt.Sprintf("modes-%d", i), keys.spki)
		rs.cluster.KubectlApply(t, object(v1alpha1.APIVersion, v1alpha1.KindAttestationPolicy, "", "audit-everything",
			map[string]any{"spec": map[string]any{"pools": []any{"*"}, "mode": mode}}))
		want := http.StatusOK
		if mode == "Enforce" {
			want = http.StatusUnauthorized
		}
		eventually(t, func() bool {
			status, _, err := rs.fetch(t.Context(), p.addr, "/config/worker", "")
			if err != nil || status != http.StatusOK && status != http.StatusUnauthorized {
				t.Errorf("while switching to %s: %d, %v", mode, status, err)
			}
			return err == nil && status == want
		}, func() string { return mode + " does not take effect" })
		if mode == "Enforce" {
			if status, _ := p.fetch(p.attests(p.node(keys))); status != 200 {
				t.Errorf("with a token under Enforce: %d", status)
			}
		}
	}
}

// A new serving certificate in the Secret is served to new connections; one that is
// open goes on, and its attestation too (status rows C9, C12).
func TestClusterServingCertificateIsReplaced(t *testing.T) {
	rs := inCluster(t)
	p := rs.serve(0)
	keys := soft(t)
	rs.machine("new-certificate", keys.spki)
	dev := swtpmtest.Start(t, "sha256")
	n := newNode(t, &verifier{t: t, addr: p.addr, roots: rs.roots}, dev)
	rs.machine("open-connection", n.id.EKSPKI)
	eventually(t, func() bool { return p.server.View().Machines.Enrolled(n.id.EKSPKI) },
		func() string { return "the Machine is not seen" })
	if err := n.ask(); err != nil {
		t.Fatal(err)
	}
	before := p.server.Certificates.Current()
	ca, err := pki.NewCA("root-ca", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	next, err := ca.Serve([]string{"mcs.test"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	rs.cluster.KubectlApply(t, object("v1", "Secret", "openshift-machine-config-operator", "machine-config-server-tls",
		map[string]any{
			"type":       "kubernetes.io/tls",
			"stringData": map[string]any{"tls.crt": string(next.Certificate), "tls.key": string(next.Key.Expose())},
		}))
	eventually(t, func() bool { return p.server.Certificates.Current() != before },
		func() string { return "the new certificate is not served" })
	if _, err := n.answer(); err != nil {
		t.Errorf("the connection that was open: %v", err)
	}
	if _, _, err := p.node(keys).attest(t.Context()); err == nil {
		t.Error("a machine that trusts only the old CA is served the old certificate")
	}
	rs.roots.AppendCertsFromPEM(ca.Certificate)
	p.attests(p.node(keys))
}

// Attack T49: callers who prove nothing make the verifier write nothing to the API
// and ask it nothing that grows with their number.
func TestAttack_T49_UnprovenCallersCauseNoWrite(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t, cluster.Audit())
	rs := newReplicas(t, c, 0)
	p := rs.serve(0)
	honest := soft(t)
	rs.machine("honest", honest.spki)
	p.attests(p.node(honest))
	mine := func() (writes, ofFront, reads int) {
		for _, r := range c.Requests(t) {
			if !slices.Contains([]string{frontAccount, controllerAccount}, r.User) || r.Resource == "leases" ||
				r.Verb == "watch" {
				continue
			}
			if r.User == controllerAccount && r.Resource == "subjectaccessreviews" {
				continue // once a minute, of what the front may watch
			}
			switch r.Verb {
			case "get", "list":
				reads++
			default:
				writes++
				if r.User == frontAccount {
					ofFront++
				}
			}
		}
		return writes, ofFront, reads
	}
	if w, f, r := mine(); w == 0 || f == 0 || r == 0 {
		t.Fatalf("the honest machine caused %d writes, %d of the front, and %d reads: this test does not see them", w, f, r)
	}
	// few calls a function that sends 400 requests. The front must write nothing. Some calls depend only on the time:
	// reads of the API's revision, and calls of the holder of the lease.
	few := func(what string, perSecond int, requests func()) {
		t.Helper()
		quiet := time.Now()
		eventually(t, func() bool {
			if w, _, _ := mine(); w > 0 {
				quiet = time.Now()
			}
			return time.Since(quiet) > 6*time.Second // an Event may be written until 5 seconds later
		}, func() string { return "the verifier does not come to rest" })
		start := time.Now()
		requests()
		w, front, r := mine()
		if took := time.Since(start); front > 0 || w > 10 || r > 20+perSecond*int(took.Seconds()) {
			t.Errorf("%s caused %d writes, %d of the front, and %d reads in %s", what, w, front, r, took)
		}
	}
	denied := func(pool string, bearers ...string) {
		t.Helper()
		for _, bearer := range bearers {
			if status, _, err := rs.fetch(t.Context(), p.addr, "/config/"+pool, bearer); err != nil || status == 200 {
				t.Fatalf("%d %v", status, err)
			}
		}
	}
	few("100 unknown TPMs and 300 requests without a token", 1, func() {
		for range 100 {
			if _, _, err := p.node(soft(t)).attest(t.Context()); err == nil {
				t.Fatal("an unknown TPM was accepted")
			}
			denied("worker", "", "rubbish", strings.Repeat("a.", 500))
		}
	})

	// Before a wrong token is denied permanently, the right one is read again: once a second by the gate, and by the
	// service. Each time, the API's revision is read, too.
	rs.cluster.KubectlApply(t, object(v1alpha1.APIVersion, v1alpha1.KindAttestationPolicy, "", "shared",
		map[string]any{"spec": map[string]any{
			"pools": []any{"shared"}, "evidence": []any{map[string]any{"all": []any{"provisioning-token"}}},
			"provisioningTokenAlone": true,
		}}))
	rs.cluster.Kubectl(t, "-n", "openshift-config", "create", "secret", "generic", "machineconfig-auth",
		"--from-literal=token="+sharedA)
	n := newNode(t, &verifier{t: t, addr: p.addr, roots: rs.roots}, nil)
	n.pool = "shared"
	eventually(t, func() bool { n.connect(); _, err := n.attestWithToken(sharedA); return err == nil },
		func() string { return "the provisioning token is not in force" })
	few("100 wrong provisioning tokens to the service and 300 to the gate", 6, func() {
		for range 100 {
			n.connect()
			if _, err := n.attestWithToken(sharedB); err == nil {
				t.Fatal("a wrong provisioning token was accepted")
			}
			denied("shared", sharedB, sharedC, "rubbish")
		}
	})
}

// The provisioning token in the cluster: a Secret as "kubectl create secret" makes it
// is in force at every replica immediately (status rows A3, A11); one that an administrator
// edits leaves the one before its grace, without a restart (A12); without the Secret
// machines wait, and AttestationVerifier and log report it.
func TestClusterProvisioningTokenCountsAtEveryReplica(t *testing.T) {
	t.Parallel()
	rs := newReplicas(t, cluster.Start(t), 0)
	rs.cluster.KubectlApply(t, object(v1alpha1.APIVersion, v1alpha1.KindAttestationPolicy, "", "audit-everything",
		map[string]any{"spec": map[string]any{
			"pools": []any{"*"}, "evidence": []any{map[string]any{"all": []any{"provisioning-token"}}},
			"provisioningTokenAlone": true,
		}}))
	rs.cluster.Kubectl(t, "-n", "openshift-config", "delete", "secret", "machineconfig-auth", "--ignore-not-found")
	all := []*inProcess{rs.serve(0), rs.serve(0), rs.serve(0)}
	everywhere := func(token string, want int) {
		t.Helper()
		for i, p := range all {
			status := 0
			eventually(t, func() bool {
				var err error
				status, _, err = rs.fetch(t.Context(), p.addr, "/config/worker", token)
				return err == nil && status == want
			}, func() string { return fmt.Sprintf("replica %d answers %d, want %d", i, status, want) })
		}
	}
	everywhere("", 503)
	first, second := rand.Text()+rand.Text(), rand.Text()+rand.Text()
	rs.cluster.Kubectl(t, "-n", "openshift-config", "create", "secret", "generic", "machineconfig-auth",
		"--from-literal=token="+first)
	everywhere("", 401)
	everywhere(first, 200)
	everywhere(second, 401)
	rs.cluster.Kubectl(t, "-n", "openshift-config", "patch", "secret", "machineconfig-auth", "--type=merge", "-p", `{"stringData":{"token":"`+second+`"}}`)
	everywhere(second, 200)
	everywhere(first, 200)
	// A replica that starts later has the same grace.
	all = append(all, rs.serve(0))
	everywhere(first, 200)
	rs.cluster.Kubectl(t, "-n", "openshift-config", "delete", "secret", "machineconfig-auth")
	everywhere("", 503)
	everywhere(second, 503)
	eventually(t, func() bool {
		out := rs.cluster.Kubectl(t, "get", "attestationverifier", "cluster", "-o", `jsonpath={.status.conditions[?(@.type=="Degraded")].message}`)
		return strings.Contains(out, "there is no provisioning token")
	}, func() string { return "the condition Degraded does not report the absence" })
	for _, p := range all {
		if text := p.log.everything(); strings.Contains(text, first) || strings.Contains(text, second) {
			t.Error("the log has a provisioning token")
		}
	}
}
