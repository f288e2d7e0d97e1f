// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester/swtpmtest"
	"github.com/mcs-attest/mcs-attest/testvm/cluster"
	"github.com/mcs-attest/mcs-attest/testvm/soak"
)

// chaosNodes is a scale-up (status rows E20, F16).
var chaosNodes = soak.Or(100, 500)

// outage is how long the API server is stopped in the middle of it.
var outage = soak.Or(20*time.Second, time.Minute)

// TestAttack_T58_ManyNodesThroughChaos boots 100 machines together (500 in `make
// soak`), each with keys of its own in a software TPM, against three replicas, while
//
//   - one replica after another is killed and started again;
//   - the API server is stopped for 20 seconds (a minute in `make soak`): nothing is
//     granted in that time;
//   - etcd is restored from a snapshot that was taken before a quarantine: the
//     quarantined machine stays out.
//
// In the end all are in, each under only its own identity, and every record
// is whole.
func TestAttack_T58_ManyNodesThroughChaos(t *testing.T) {
	t.Parallel()
	rs := newReplicas(t, cluster.Start(t), 3)
	fleet := swtpmtest.NewFleet(t, 4)
	machines := make([]*chaosMachine, chaosNodes)
	var prepare sync.WaitGroup
	for i := range machines {
		prepare.Go(func() {
			keys, err := newFleetKeys(fleet, i)
			if err != nil {
				t.Error(err)
				return
			}
			machines[i] = &chaosMachine{name: fmt.Sprintf("worker-%03d", i), node: rs.node(keys), ek: keys.id.EKSPKI}
		})
	}
	prepare.Wait()
	if t.Failed() {
		t.FailNow()
	}
	for _, m := range machines {
		m.uid = string(rs.machine(m.name, m.ek).GetUID())
	}
	quarantined, others := machines[0], machines[1:]

	run := &chaos{rs: rs}
	ctx, stop := context.WithTimeout(t.Context(), 40*time.Minute)
	defer stop()
	killer, stopKiller := context.WithCancel(ctx)
	var kills sync.WaitGroup
	kills.Go(func() { run.killOneAfterAnother(killer) })

	var boots sync.WaitGroup
	for _, m := range others {
		boots.Go(func() { run.boot(ctx, m) })
	}
	run.waitFor(ctx, int64(chaosNodes/5))
	t.Logf("the API server goes away with %d of %d machines in", run.in.Load(), chaosNodes)
	rs.cluster.StopAPIServer()
	before := run.settled(t)
	time.Sleep(outage)
	if granted := run.granted.Load() - before; granted != 0 {
		t.Errorf("%d tokens were granted without an API server", granted)
	}
	if err := rs.cluster.StartAPIServer(); err != nil {
		t.Fatal(err)
	}
	boots.Wait()
	stopKiller()
	kills.Wait()
	for _, r := range rs.all {
		r.waitReady()
	}
	t.Logf("%d machines admitted; %d replicas were killed; %d attestations, %d calls were denied for now", run.in.Load(),
		run.kills.Load(), len(run.took), run.again.Load())
	for _, why := range run.final {
		t.Error(why)
	}
	run.report(t)

	// A quarantine that the snapshot does not know.
	snapshot := filepath.Join(t.TempDir(), "etcd.db")
	if err := rs.cluster.Snapshot(snapshot); err != nil {
		t.Fatal(err)
	}
	rs.age(1000)
	rs.quarantine(quarantined.uid, true)
	eventually(t, func() bool {
		_, _, err := quarantined.node.attest(ctx)
		return err != nil && slices.ContainsFunc(rs.logs(), func(line string) bool { return strings.Contains(line, `"reason":"Quarantined"`) })
	}, func() string { return "the quarantined machine is not refused" })
	if err := rs.cluster.Restore(snapshot); err != nil {
		t.Fatal(err)
	}
	for _, r := range rs.all {
		r.waitReady()
	}
	eventually(t, func() bool { return rs.degraded("EtcdRestored") },
		func() string { return "the restore of etcd was not detected" })
	for range 10 {
		if token, _, err := quarantined.node.attest(ctx); err == nil {
			t.Fatalf("the restore lifted the quarantine: token of %d bytes", len(token))
		}
	}

	// Every record is whole, and is of its own machine.
	records := rs.records()
	for _, m := range others {
		rec := records[m.uid]
		if rec == nil {
			t.Errorf("%s has no record", m.name)
			continue
		}
		if rec.Status.Identity.EKSHA256 != hex.EncodeToString(m.ek[:]) || rec.Status.Phase != v1alpha1.PhaseFetched ||
			rec.Spec.MachineRef == nil || rec.Spec.MachineRef.Name != m.name {
			t.Errorf("%s: phase %s, identity %s", m.name, rec.Status.Phase, rec.Status.Identity.EKSHA256)
		}
	}
	claims, err := rs.client.Resource(claimsResource).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	owner := map[string]string{}
	for _, c := range claims.Items {
		spec := c.Object["spec"].(map[string]any)
		component, uid := spec["component"].(string), spec["machineUID"].(string)
		if other, ok := owner[component]; ok {
			t.Errorf("%s is claimed for %s and for %s", component, other, uid)
		}
		owner[component] = uid
	}
	for _, m := range others {
		if got := owner["ek:"+hex.EncodeToString(m.ek[:])]; got != m.uid {
			t.Errorf("the EK of %s is claimed for %q", m.name, got)
		}
	}
}

type chaosMachine struct {
	name string
	uid  string
	ek   [32]byte
	node *loadNode
}

// chaos counts what happens.
type chaos struct {
	rs      *replicas
	in      atomic.Int64 // machines that have their config
	granted atomic.Int64 // tokens
	again   atomic.Int64
	void    atomic.Int64 // tokens that the gate did not accept
	kills   atomic.Int64
	// whole says whether a body is the config. Default: it is fullConfig.
	whole func(body string) bool

	mu    sync.Mutex
	took  []time.Duration
	final []string
}

// boot is a first boot: attest, fetch, and again from the start on anything that
// is not final, as the agent and Ignition do.
func (c *chaos) boot(ctx context.Context, m *chaosMachine) {
	for ctx.Err() == nil {
		token, took, err := m.node.attest(ctx)
		if err != nil {
			var denial *connect.Error
			if errors.As(err, &denial) && (denial.Code() == connect.CodePermissionDenied ||
				denial.Code() == connect.CodeUnauthenticated) {
				c.fail("%s: a permanent denial: %v", m.name, err)
				return
			}
			c.again.Add(1)
			pause(ctx)
			continue
		}
		c.granted.Add(1)
		c.mu.Lock()
		c.took = append(c.took, took)
		c.mu.Unlock()
		if c.fetch(ctx, m, token) {
			c.in.Add(1)
			return
		}
	}
	c.fail("%s did not come in", m.name)
}

// fetch asks for the config until it has it, or the token is void.
func (c *chaos) fetch(ctx context.Context, m *chaosMachine, token string) bool {
	for ctx.Err() == nil {
		status, body, err := c.rs.fetch(ctx, m.node.addr, "/config/worker", token)
		switch {
		case err == nil && status == 200 && (body == fullConfig || c.whole != nil && c.whole(body)):
			return true
		case err == nil && status == 200:
			c.fail("%s received %q", m.name, body)
			return true
		case err == nil && status == 401:
			c.void.Add(1)
			return false // used up by an answer that was lost with its replica
		case err == nil && status < 500:
			c.fail("%s: the gate answers %d", m.name, status)
			return true
		}
		c.again.Add(1)
		pause(ctx)
	}
	return false
}

func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(time.Second + time.Duration(rand.IntN(2000))*time.Millisecond):
	}
}

func (c *chaos) fail(format string, a ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.final = append(c.final, fmt.Sprintf(format, a...))
}

func (c *chaos) killOneAfterAnother(ctx context.Context) {
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-time.After(4 * time.Second):
		}
		r := c.rs.all[i%len(c.rs.all)]
		r.kill()
		c.kills.Add(1)
		time.Sleep(500 * time.Millisecond)
		r.start()
		// On a slow machine the replicas would be killed faster than they start, and none would ever serve. While the API
		// server is unavailable, none becomes ready.
		for end := time.Now().Add(30 * time.Second); r.ready() != "" && ctx.Err() == nil && time.Now().Before(end); {
			time.Sleep(100 * time.Millisecond)
		}
	}
}

func (c *chaos) waitFor(ctx context.Context, n int64) {
	for c.in.Load() < n && ctx.Err() == nil {
		time.Sleep(20 * time.Millisecond)
	}
}

// settled waits until what was under way when the API server stopped has ended, and returns the number of tokens.
func (c *chaos) settled(t *testing.T) int64 {
	t.Helper()
	last, since := c.granted.Load(), time.Now()
	eventually(t, func() bool {
		if now := c.granted.Load(); now != last {
			last, since = now, time.Now()
		}
		return time.Since(since) > 5*time.Second // as long as a call waits for its turn
	}, func() string { return fmt.Sprintf("without an API server tokens are granted: %d and more", last) })
	return last
}

// report says how long an attestation took, both calls together, as a machine sees it.
func (c *chaos) report(t *testing.T) {
	slices.Sort(c.took)
	if n := len(c.took); n > 0 {
		t.Logf("attestation (both calls, %d of them): median %v, p99 %v, longest %v", n, c.took[n/2], c.took[n*99/100],
			c.took[n-1])
	}
}

// quarantine is what "attest quarantine" does.
func (rs *replicas) quarantine(uid string, on bool) {
	rs.t.Helper()
	patch := fmt.Sprintf(`{"spec":{"quarantined":%v}}`, on)
	_, err := rs.client.Resource(recordsResource).Namespace(machineNamespace).Patch(context.Background(), uid, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		rs.t.Fatal(err)
	}
}

// age writes n revisions, as the time since a backup does. A replica notices a restore
// by its revision, so a backup of a moment ago could be overtaken before all connect.
func (rs *replicas) age(n int) {
	rs.t.Helper()
	configMaps := rs.client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace(
		"default")
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "age"},
	}}
	o, err := configMaps.Create(context.Background(), o, metav1.CreateOptions{})
	for i := 0; i < n && err == nil; i++ {
		o.Object["data"] = map[string]any{"revision": fmt.Sprint(i)}
		o, err = configMaps.Update(context.Background(), o, metav1.UpdateOptions{})
	}
	if err != nil {
		rs.t.Fatal(err)
	}
}

// degraded reports whether the cluster's condition Degraded has this reason.
func (rs *replicas) degraded(reason string) bool {
	o, err := rs.client.Resource(verifierResource).Get(context.Background(), v1alpha1.VerifierName, metav1.GetOptions{})
	if err != nil {
		return false
	}
	status, _ := o.Object["status"].(map[string]any)
	conditions, _ := status["conditions"].([]any)
	return slices.ContainsFunc(conditions, func(c any) bool {
		m, _ := c.(map[string]any)
		return m["type"] == v1alpha1.ConditionDegraded && m["status"] == "True" &&
			strings.Contains(fmt.Sprint(m["reason"], m["message"]), reason)
	})
}

// logs are all lines that the replicas have written.
func (rs *replicas) logs() (lines []string) {
	for _, r := range rs.all {
		lines = append(lines, strings.Split(r.log.everything(), "\n")...)
	}
	return lines
}
