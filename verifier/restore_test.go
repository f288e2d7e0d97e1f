// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/hex"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/testvm/cluster"
)

// T60: etcd goes back to a day when the policy was Audit and a joined machine
// had a grant. The verifier notices it, and neither counts until an administrator
// acknowledges the restore.
func TestAttack_T60_ARestoreMakesNothingLessStrictUntilAcknowledged(t *testing.T) {
	t.Parallel()
	rs := newReplicas(t, cluster.Start(t), 0)
	p := rs.serve(0)
	patch := func(kind, namespace, name, subresource, text string) {
		t.Helper()
		args := []string{"patch", kind, name, "--type=merge", "-p", text}
		if namespace != "" {
			args = append(args, "-n", namespace)
		}
		if subresource != "" {
			args = append(args, "--subresource="+subresource)
		}
		rs.cluster.Kubectl(t, args...)
	}
	mode := func(mode string) {
		t.Helper()
		patch("attestationpolicy", "", "audit-everything", "", `{"spec":{"mode":"`+mode+`"}}`)
	}
	anonymous := func() int {
		status, _, err := rs.fetch(t.Context(), p.addr, "/config/worker", "")
		if err != nil {
			return 0
		}
		return status
	}
	becomes := func(want int) {
		t.Helper()
		got := 0
		eventually(t, func() bool { got = anonymous(); return got == want },
			func() string { return fmt.Sprintf("an anonymous request gets %d, want %d", got, want) })
	}
	var why error
	attests := func(n *loadNode) bool {
		_, _, why = n.attest(t.Context())
		return why == nil
	}

	joinedKeys, honestKeys := soft(t), soft(t)
	joined, honest := p.node(joinedKeys), p.node(honestKeys)
	uid := string(rs.machine("joined", joinedKeys.spki).GetUID())
	rs.machine("honest", honestKeys.spki)
	p.attests(joined)
	patch("machines.machine.openshift.io", machineNamespace, "joined", "status", `{"status":{"nodeRef":{"kind":"Node","name":"joined"}}}`)
	eventually(t, func() bool { return rs.record(uid).Status.Phase == v1alpha1.PhaseJoined },
		func() string { return "it has not joined" })
	until := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	patch("machineattestations.mcs-attest.dev", machineNamespace, uid, "", `{"spec":{"reattest":{"until":"`+until+`"}}}`)
	mode("Audit")
	becomes(http.StatusOK)
	snapshot := filepath.Join(t.TempDir(), "etcd.db")
	if err := rs.cluster.Snapshot(snapshot); err != nil {
		t.Fatal(err)
	}

	// What an administrator tightens after the backup.
	patch("machineattestations.mcs-attest.dev", machineNamespace, uid, "", `{"spec":{"reattest":null}}`)
	mode("Enforce")
	becomes(http.StatusUnauthorized)
	eventually(t, func() bool {
		return !attests(joined) && strings.Contains(p.log.everything(), `"reason":"MachineJoined"`)
	},
		func() string { return "the grant was withdrawn, and the machine gets in" })

	p.age(t, 500)
	if err := rs.cluster.Restore(snapshot); err != nil {
		t.Fatal(err)
	}
	verifiers := func(path string) string {
		out, err := rs.cluster.KubectlAs("admin", "", "get", "attestationverifier", "cluster", "-o", "jsonpath="+path)
		if err != nil {
			return err.Error()
		}
		return out
	}
	const degraded = `{.status.conditions[?(@.type=="Degraded")]}`
	open := 0
	eventually(t, func() bool {
		if anonymous() == http.StatusOK {
			open++
		}
		return strings.Contains(verifiers(degraded), "EtcdRestored") && p.restores() == 2 && p.server.Problems() == nil
	}, func() string {
		return fmt.Sprintf("two processes detected the restore of etcd %d times; the front: %v; %s", p.restores(),
			p.server.Problems(), verifiers(degraded))
	})
	// An honest machine gets in under the policy of before.
	if status, _ := p.fetch(p.attests(honest)); status != http.StatusOK {
		t.Errorf("after the restore the honest machine gets %d", status)
	}
	for range 50 {
		if anonymous() == http.StatusOK {
			open++
		}
		time.Sleep(20 * time.Millisecond)
	}
	if open > 0 {
		t.Errorf("after the restore %d anonymous requests received the config", open)
	}
	if attests(joined) {
		t.Error("the restore brought a withdrawn grant back")
	}
	if text := verifiers(degraded); !strings.Contains(text, "policies") ||
		!strings.Contains(text, "mcs-attest.dev/restore-seen=") {
		t.Errorf("the condition does not say what waits for whom: %s", text)
	}
	eventually(t, func() bool {
		out := rs.cluster.Kubectl(t, "get", "attestationpolicy", "audit-everything", "-o", `jsonpath={.status.conditions[?(@.type=="Accepted")].reason}`)
		return out == "EtcdRestored"
	}, func() string { return "the policy is reported as in force" })

	// As docs/deploying.md has it.
	rs.cluster.Kubectl(t, "annotate", "--overwrite", "attestationverifier", "cluster", "mcs-attest.dev/restore-seen="+time.Now().UTC().Add(time.Second).Format(time.RFC3339))
	becomes(http.StatusOK)
	eventually(t, func() bool { return attests(joined) },
		func() string { return fmt.Sprint("acknowledged, and the grant does not count: ", why) })
	eventually(t, func() bool { return !strings.Contains(verifiers(degraded), "EtcdRestored") },
		func() string { return verifiers(degraded) })
	p.detectedOnce()
}

// T60: etcd goes back to a day when a Machine and two enrollments existed that were removed since. None of them is
// accepted until an administrator acknowledges the restore. A Machine that is created after the restore is.
func TestAttack_T60_WhatWasRemovedDoesNotComeBackWithARestore(t *testing.T) {
	t.Parallel()
	rs := newReplicas(t, cluster.Start(t), 0)
	p := rs.serve(0)
	node := func() (*softKeys, *loadNode) { keys := soft(t); return keys, p.node(keys) }
	var why error
	attests := func(n *loadNode) bool {
		_, _, why = n.attest(t.Context())
		return why == nil
	}
	staysKeys, stays := node()
	machineKeys, withMachine := node()
	enrolledKeys, withEnrollment := node()
	standInKeys, withStandIn := node()
	removed := map[string]*loadNode{"a Machine": withMachine, "an enrollment": withEnrollment, "a stand-in": withStandIn}

	rs.machine("stays", staysKeys.spki)
	rs.machine("removed", machineKeys.spki)
	rs.machine("bare", soft(t).spki)
	rs.cluster.Kubectl(t, "annotate", "machines.machine.openshift.io", "-n", machineNamespace, "bare",
		v1alpha1.AnnotationEKSHA256+"-")
	enrollment := func(name string, spec map[string]any) {
		rs.cluster.KubectlApply(t, object(v1alpha1.APIVersion, v1alpha1.KindMachineAttestation, machineNamespace, name,
			map[string]any{"spec": spec}))
	}
	ek := func(keys *softKeys) []any { return []any{hex.EncodeToString(keys.spki[:])} }
	enrollment("bare-tpm", map[string]any{"machineRef": map[string]any{"name": "bare"}, "ekSHA256": ek(enrolledKeys)})
	enrollment("edge", map[string]any{"pool": "worker", "ekSHA256": ek(standInKeys)})
	for _, keys := range []*softKeys{staysKeys, machineKeys, enrolledKeys, standInKeys} {
		eventually(t, func() bool { return p.server.View().Machines.Enrolled(keys.spki) },
			func() string { return "an EK is not enrolled" })
	}
	snapshot := filepath.Join(t.TempDir(), "etcd.db")
	if err := rs.cluster.Snapshot(snapshot); err != nil {
		t.Fatal(err)
	}
	rs.cluster.Kubectl(t, "delete", "machines.machine.openshift.io", "-n", machineNamespace, "removed")
	rs.cluster.Kubectl(t, "delete", "machineattestations", "-n", machineNamespace, "bare-tpm", "edge")
	for name, n := range removed {
		eventually(t, func() bool { return !attests(n) },
			func() string { return name + " was removed, and the machine gets in" })
	}
	p.age(t, 500)
	if err := rs.cluster.Restore(snapshot); err != nil {
		t.Fatal(err)
	}
	degraded := func() string {
		out, err := rs.cluster.KubectlAs("admin", "", "get", "attestationverifier", "cluster", "-o", `jsonpath={.status.conditions[?(@.type=="Degraded")]}`)
		if err != nil {
			return err.Error()
		}
		return out
	}
	refused := func() {
		t.Helper()
		for name, n := range removed {
			if attests(n) {
				t.Errorf("the restore brought %s back", name)
			}
		}
	}
	eventually(t, func() bool {
		refused()
		return t.Failed() || strings.Contains(degraded(), "EtcdRestored") && p.restores() == 2 && p.server.Problems() == nil
	}, func() string { return "the restore was not noticed: " + degraded() })
	p.attests(stays)
	later, late := node()
	rs.machine("later", later.spki)
	p.attests(late)
	for range 10 {
		refused()
	}
	eventually(t, func() bool { return strings.Contains(degraded(), "3 restored Machines and enrollments") }, degraded)

	rs.cluster.Kubectl(t, "annotate", "--overwrite", "attestationverifier", "cluster", "mcs-attest.dev/restore-seen="+time.Now().UTC().Add(time.Second).Format(time.RFC3339))
	for name, n := range removed {
		eventually(t, func() bool { return attests(n) },
			func() string { return fmt.Sprintf("acknowledged, and %s does not count: %v", name, why) })
	}
	p.detectedOnce()
}

// age writes n revisions, and waits until the front and the controller have seen them. Otherwise the restored etcd may
// reach what they saw before they connect again.
func (p *inProcess) age(t *testing.T, n int) {
	t.Helper()
	p.rs.age(n)
	keys := soft(t)
	uid := string(p.rs.machine("aged", keys.spki).GetUID())
	eventually(t, func() bool { return p.server.View().Machines.Enrolled(keys.spki) && p.rs.record(uid) != nil },
		func() string { return "a new Machine is not seen" })
}

// restores returns how often the front and the controller detected a restore of etcd. Either may be the first.
func (p *inProcess) restores() int { return strings.Count(p.log.everything(), `"msg":"etcd went back`) }

func (p *inProcess) detectedOnce() {
	p.rs.t.Helper()
	if n := p.restores(); n != 2 {
		p.rs.t.Errorf("two processes detected one restore %d times", n)
	}
}
