// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/hex"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
)

// E14: the control plane of a new cluster. On the bootstrap host there is no API: the verifier of a folder has the
// enrollments as files, and no Machine. Later the installer's Machines are in the cluster, whose nodes have joined
// already. Their records appear then, and a control-plane node is provisioned again only with a grant, by the same TPM.
func TestBootstrap_MastersAttestBeforeTheirMachinesExist(t *testing.T) {
	master, stranger := soft(t), soft(t)
	host := newVerifier(t)
	host.enroll("master-0", "master", master.spki)
	boots := func(pool string, keys *softKeys) (string, error) {
		n := &loadNode{addr: host.addr, origin: testOrigin, roots: host.roots, pool: pool, keys: keys}
		token, _, err := n.attest(t.Context())
		return token, err
	}
	if _, err := boots("master", stranger); err == nil {
		t.Error("a machine that is not enrolled attests as a control-plane node")
	}
	if _, err := boots("worker", master); err == nil {
		t.Error("a control-plane node attests for another pool")
	}
	token, err := boots("master", master)
	if err != nil {
		t.Fatal(err)
	}
	if status, _, body := host.fetch(http.MethodGet, "/config/master", token); status != http.StatusOK ||
		!strings.Contains(body, "master-config-secret") {
		t.Fatalf("the bootstrap host answers %d %s", status, body)
	}

	rs := inCluster(t)
	p := rs.serve(0)
	ek := hex.EncodeToString(master.spki[:])
	rs.cluster.KubectlApply(t, object("machine.openshift.io/v1beta1", "Machine", machineNamespace, "master-0",
		map[string]any{"spec": map[string]any{"providerSpec": map[string]any{}}})+
		object(v1alpha1.APIVersion, v1alpha1.KindMachineAttestation, machineNamespace, "master-0",
			map[string]any{"spec": map[string]any{"machineRef": map[string]any{"name": "master-0"}, "ekSHA256": []any{ek}}}))
	rs.patch(machinesResource, "master-0",
		`{"metadata":{"labels":{"machine.openshift.io/cluster-api-machine-role":"master"}}}`)
	rs.patch(machinesResource, "master-0", `{"status":{"nodeRef":{"kind":"Node","name":"master-0"}}}`, "status")
	m, err := rs.client.Resource(machinesResource).Namespace(machineNamespace).Get(t.Context(), "master-0",
		metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	uid := string(m.GetUID())
	eventually(t, func() bool { r := rs.record(uid); return r != nil && r.Status.Phase == v1alpha1.PhaseJoined },
		func() string { return "no record of a control-plane node that joined at the bootstrap host" })

	n := p.node(master)
	n.pool = "master"
	log := ""
	eventually(t, func() bool { // until the front has read the Machine, it denies for another reason
		p.log.drain()
		if _, _, err := n.attest(t.Context()); err == nil {
			t.Fatal("it joined, and attests again without a grant")
		}
		log = p.log.drain()
		return strings.Contains(log, `"reason":"MachineJoined"`)
	}, func() string { return "denied for another reason: " + log })
	until := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	rs.patch(recordsResource, uid, `{"spec":{"reattest":{"until":"`+until+`"}}}`)
	eventually(t, func() bool { token, _, err = n.attest(t.Context()); return err == nil },
		func() string { return "with a grant: " + err.Error() })
	if status, body, err := rs.fetch(t.Context(), p.addr, "/config/master", token); err != nil || status != http.StatusOK {
		t.Errorf("the gate answers %d %s %v", status, body, err)
	}
	if r := rs.record(uid); r.Status.Identity.EKSHA256 != ek {
		t.Errorf("recorded %+v", r.Status.Identity)
	}
	other := p.node(stranger)
	other.pool = "master"
	if _, _, err := other.attest(t.Context()); err == nil {
		t.Error("with the grant another machine attests")
	}
}
