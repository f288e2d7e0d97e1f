// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

// In a cluster the anchors come from a ConfigMap, the Machine from the API, and what
// one replica has recorded of an instance, every replica knows.
func TestCloudIdentityInACluster(t *testing.T) {
	rs := inCluster(t)
	s := &site{t: t}
	files := map[string][]byte{}
	section := s.newAzure(files)
	ca := filepath.Join(t.TempDir(), "api-ca.pem")
	if err := os.WriteFile(ca, files["api-ca.pem"], 0o600); err != nil {
		t.Fatal(err)
	}
	section = strings.ReplaceAll(section, "api-ca.pem", ca)
	roots := object("v1", "ConfigMap", ownNamespace, "azure-roots", map[string]any{
		"metadata": map[string]any{"name": "azure-roots", "namespace": ownNamespace,
			"labels": map[string]any{"mcs-attest.dev/content": "azure-roots"}},
		"data": map[string]any{"test.pem": string(files["azure-roots/test.pem"])},
	})
	rs.cluster.KubectlApply(t, roots+object(v1alpha1.APIVersion, v1alpha1.KindAttestationPolicy, "", "azure-workers",
		map[string]any{
			"spec": map[string]any{"pools": []any{"worker"}, "evidence": []any{map[string]any{"all": []any{"azure-attested"}}}},
		}))
	// The API server is other tests', too.
	t.Cleanup(func() {
		rs.cluster.Kubectl(t, "delete", "attestationpolicy", "azure-workers", "--ignore-not-found")
		rs.cluster.Kubectl(t, "-n", ownNamespace, "delete", "configmap", "azure-roots", "--ignore-not-found")
		rs.cluster.Kubectl(t, "-n", machineNamespace, "delete", "machine", "azure-worker-0", "--ignore-not-found")
	})
	a, b := rs.serve(0, section), rs.serve(0, section)
	id := s.add("azure-worker-0", nil)
	rs.cluster.KubectlApply(t, object("machine.openshift.io/v1beta1", "Machine", machineNamespace, "azure-worker-0",
		map[string]any{
			"metadata": map[string]any{"name": "azure-worker-0", "namespace": machineNamespace,
				"labels": map[string]any{"machine.openshift.io/cluster-api-machine-role": "worker"}},
			"spec": map[string]any{"providerID": id},
		}))
	machine, err := rs.client.Resource(machinesResource).Namespace(machineNamespace).Get(t.Context(), "azure-worker-0", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}

	at := func(p *inProcess) *node {
		s.verifier = &verifier{t: t, addr: p.addr, roots: rs.roots, log: p.log}
		return s.node("azure-worker-0", id, nil)
	}
	n := at(a)
	var res *mcsattestv1.AttestResponse
	eventually(t, func() bool { res, err = n.again(); return err == nil }, func() string {
		return "the machine does not get in: " + err.Error() + "\n" + tail(a.log.everything(), 20)
	})
	if status, body := b.fetch(res.GetToken()); status != 200 || body != fullConfig {
		t.Errorf("the other replica's gate answers %d %q", status, body)
	}
	rec := rs.record(string(machine.GetUID()))
	if rec == nil || rec.Status.Identity.ProviderID != id || !strings.HasPrefix(rec.Status.Identity.InstanceID, "azure:") {
		t.Fatalf("record %+v", rec)
	}
	claim := "instance:" + rec.Status.Identity.InstanceID
	held, err := b.server.Records().Holder(t.Context(), claim)
	if err != nil || held != string(machine.GetUID()) {
		t.Errorf("%s is held by %q, %v", claim, held, err)
	}

	// Another machine under the same name, at the other replica: Azure says that it is not.
	s.add("azure-worker-0", nil)
	other := at(b)
	if _, err := other.again(); err == nil {
		t.Fatal("another machine under the recorded name was accepted")
	}
	b.saw("IdentityConflict")
	// Anchors that are gone are not in force: the defaults do not know the test's.
	rs.cluster.Kubectl(t, "-n", ownNamespace, "delete", "configmap", "azure-roots")
	eventually(t, func() bool {
		_, err = at(a).again()
		return strings.Contains(a.log.everything(), `"reason":"DocumentUntrusted"`)
	}, func() string { return "anchors that were deleted still count" })
}
