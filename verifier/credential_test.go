// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
)

// Attack T46, for what the gate puts into a config: neither a machine's own
// credential nor the one that all share is anywhere but in the answer. Nor is the token that opens the config.
// Of a bootstrap token, the API server has it in its Secret, too.
func TestAttack_T46_CredentialsAreInNoLogMetricEventRecordOrBundle(t *testing.T) {
	j := newJoining(t)
	j.install("credential-kubernetes")
	var secrets []string
	var text strings.Builder
	for name, section := range map[string]string{"token": "{}", "bootstrap": "{kind: BootstrapToken}"} {
		p := j.serve(0, "credential: "+section+"\n")
		uid, token, own := j.attestedAndFetched(t, p, name)
		if own == j.shared {
			t.Fatalf("%s: the config has the shared credential", name)
		}
		for _, secret := range []string{own, token} {
			secrets = append(secrets, secret, secret[strings.LastIndexByte(secret, '.')+1:])
		}
		j.hasEvents(uid, "Attested", "Fetched")
		if rec := j.record(uid); len(rec.Status.Credentials) != 1 {
			t.Errorf("%s: the record has %d credentials", name, len(rec.Status.Credentials))
		}
		metrics := newResponse()
		p.server.Metrics.Handler().ServeHTTP(metrics, mustRequest(t, "/metrics"))
		if !strings.Contains(metrics.body.String(), "mcs_attest_configs_served_total") {
			t.Error("the metrics are missing: nothing was searched")
		}
		p.stop() // the next replica makes credentials of another kind
		text.WriteString(p.log.everything() + metrics.body.String())
	}
	for uid, rec := range j.records() {
		fmt.Fprintf(&text, "%s %+v\n", uid, rec)
	}
	events, err := j.client.Resource(eventsResource).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(&text, events.Items)

	t.Setenv("KUBECONFIG", j.cluster.Kubeconfig("admin"))
	dir := filepath.Join(t.TempDir(), "bundle")
	if code := cli.Run(t.Context(), &env.Env{Name: "kubectl attest", Plugin: true},
		[]string{"support-bundle", "--output", dir + "/"}); code != 0 {
		t.Fatalf("support-bundle: exit status %d", code)
	}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		fmt.Fprintf(&text, "%s\n%s\n", path, raw)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}

	everything := text.String()
	for _, want := range []string{"JTI=", "system:bootstrap:", "mcs-attest-bootstrap-", "contents.txt"} {
		if !strings.Contains(everything, want) {
			t.Errorf("%s is missing: nothing was searched", want)
		}
	}
	for _, secret := range append(secrets, j.shared, j.shared[strings.LastIndexByte(j.shared, '.')+1:]) {
		if i := strings.Index(everything, secret); i >= 0 {
			t.Errorf("%d characters of a credential stand after %q", len(secret), everything[max(0, i-200):i])
		}
	}
}

// A stolen front can write any record. It can only admit Machines that wait, and it can enroll none.
func TestAttack_T49_AStolenFrontAdmitsOnlyMachinesThatWait(t *testing.T) {
	j := newJoining(t)
	p := j.serve(0, "credential: {}\napprover: {}\n")
	front, err := dynamic.NewForConfig(j.cluster.ServiceAccount(t, ownNamespace, "mcs-attest-verifier"))
	if err != nil {
		t.Fatal(err)
	}
	records := front.Resource(recordsResource).Namespace(machineNamespace)
	published := func(uid string) bool {
		_, err := j.client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "secrets"}).Namespace(
			"mcs-attest-credentials").Get(t.Context(), uid, metav1.GetOptions{})
		if err != nil && !kerrors.IsNotFound(err) {
			t.Fatal(err)
		}
		return err == nil
	}
	// forge writes that a machine attested a moment ago.
	forge := func(name, uid string) {
		t.Helper()
		ref := map[string]any{"apiVersion": "machine.openshift.io/v1beta1", "kind": "Machine", "name": name}
		o := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": v1alpha1.APIVersion, "kind": v1alpha1.KindMachineAttestation, "metadata": map[string]any{"name": uid},
			"spec": map[string]any{"machineRef": ref},
		}}
		o.SetOwnerReferences([]metav1.OwnerReference{{
			APIVersion: "machine.openshift.io/v1beta1", Kind: "Machine", Name: name, UID: types.UID(uid)}})
		if _, err := records.Create(t.Context(), o, metav1.CreateOptions{}); err != nil && !kerrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
		status := fmt.Sprintf(`{"status":{"machineUID":%q,"phase":"Attested","quarantined":false,"certificate":null,`+
			`"token":{"id":"forged","pool":"worker","expiry":%q,"uses":0,"maxUses":3}}}`, uid,
			time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
		_, err := records.Patch(t.Context(), uid, types.MergePatchType, []byte(status), metav1.PatchOptions{}, "status")
		if err != nil && !kerrors.IsNotFound(err) { // a record without a Machine is deleted
			t.Fatal(err)
		}
	}

	began := time.Now()
	honest, _ := j.fetched(t, p, "worker-0")
	t.Logf("attested and received a config with its credential after %v", time.Since(began))
	if !published(honest) {
		t.Fatal("the credential of an honest machine is not published")
	}
	j.patch(machinesResource, "worker-0", `{"status":{"nodeRef":{"kind":"Node","name":"worker-0"}}}`, "status")
	eventually(t, func() bool { return !published(honest) },
		func() string { return "the credential of a machine that joined is still published" })

	stopped := string(j.machine("worker-1", soft(t).spki).GetUID())
	j.stop("worker-1")
	waiting := string(j.machine("worker-2", soft(t).spki).GetUID())
	const gone = "8a3f0b52-6c1e-4b8e-9a39-3d1d4f6f6a01"
	// What the administrator did has been watched.
	eventually(t, func() bool { rec := j.record(stopped); return rec != nil && rec.Status.Quarantined },
		func() string { return "the quarantine is not on the record" })
	credentials := len(j.record(honest).Status.Credentials)
	forge("worker-0", honest)
	forge("worker-1", stopped)
	forge("worker-3", gone)
	forge("worker-2", waiting)
	// That one shows that the others were reconciled as well.
	eventually(t, func() bool { return published(waiting) },
		func() string { return "a Machine that waits receives no credential: the test proves nothing" })
	for name, uid := range map[string]string{"that joined": honest, "that is quarantined": stopped,
		"that does not exist": gone} {
		if published(uid) {
			t.Errorf("a Machine %s received a credential", name)
		}
	}
	if n := len(j.record(honest).Status.Credentials); n != credentials {
		t.Errorf("the record of a Machine that joined has %d credentials, and had %d", n, credentials)
	}
}

// The leader ended without releasing its Lease. Another replica makes the credential before the Lease expires.
func TestCredential_IsCreatedWhileNoReplicaLeads(t *testing.T) {
	j := newJoining(t)
	first := j.serve(0, "credential: {}\n")
	j.fetched(t, first, "worker-0") // the keys exist
	first.stop()
	lease := `{"spec":{"holderIdentity":"ended","leaseDurationSeconds":3600,"renewTime":"` +
		time.Now().UTC().Format("2006-01-02T15:04:05.000000Z") + `"}}`
	j.cluster.Kubectl(t, "-n", ownNamespace, "patch", "lease", kube.LeaseName, "--type=merge", "-p", lease)
	p := j.serve(0, "credential: {}\n")
	began := time.Now()
	j.fetched(t, p, "worker-1")
	t.Logf("without a leader a machine received its config after %v", time.Since(began))
	if holder := j.cluster.Kubectl(t, "-n", ownNamespace, "get", "lease", kube.LeaseName, "-o",
		"jsonpath={.spec.holderIdentity}"); holder != "ended" {
		t.Errorf("%s leads: the test proves nothing", holder)
	}
}
