// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/approver/approvertest"
)

// backlog is how many new Machines wait for their records in a T67 test. The holder of
// the lease makes 20 records per second.
const backlog = 1500

// scaleUp creates Machines that have no record yet.
func (rs *replicas) scaleUp(n int) {
	rs.t.Helper()
	var wg sync.WaitGroup
	names := make(chan string)
	for range 8 {
		wg.Go(func() {
			for name := range names {
				m := &unstructured.Unstructured{Object: map[string]any{
					"apiVersion": "machine.openshift.io/v1beta1", "kind": "Machine",
					"metadata": map[string]any{"namespace": machineNamespace, "name": name},
					"spec":     map[string]any{},
				}}
				if _, err := rs.client.Resource(machinesResource).Namespace(machineNamespace).Create(context.Background(), m, metav1.CreateOptions{}); err != nil {
					rs.t.Errorf("create Machine %s: %v", name, err)
				}
			}
		})
	}
	for i := range n {
		names <- fmt.Sprintf("new-%d", i)
	}
	close(names)
	wg.Wait()
}

// made returns how many Machines have a record.
func (rs *replicas) made() (n int) {
	rs.t.Helper()
	list, err := rs.client.Resource(recordsResource).Namespace(machineNamespace).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		rs.t.Fatal(err)
	}
	for i := range list.Items {
		if !strings.HasPrefix(list.Items[i].GetName(), stopped) {
			n++
		}
	}
	return n
}

// stopped begins the name of an object that stops a Machine.
const stopped = "stop-"

// stop creates an object of an administrator that stops a Machine.
func (rs *replicas) stop(name string) {
	rs.t.Helper()
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.APIVersion, "kind": v1alpha1.KindMachineAttestation,
		"metadata": map[string]any{"name": stopped + name},
		"spec":     map[string]any{"machineRef": map[string]any{"name": name}, "quarantined": true},
	}}
	if _, err := rs.client.Resource(recordsResource).Namespace(machineNamespace).Create(context.Background(), o, metav1.CreateOptions{}); err != nil {
		rs.t.Fatal(err)
	}
}

// An administrator stops a machine while many new Machines wait for their records. The
// machine then asks for its certificate with the credential that it already has.
func TestAttack_T67_AQuarantineDoesNotWaitBehindOtherWork(t *testing.T) {
	j := newJoining(t)
	p := j.serve(0, "credential: {}\napprover: {}\n")
	const victims = 3
	uids, credentials := map[string]string{}, map[string]string{}
	for i := range victims {
		name := fmt.Sprintf("worker-%d", i)
		uids[name], credentials[name] = j.fetched(t, p, name)
	}
	j.scaleUp(backlog)
	before := backlog + victims - j.made()
	if before < backlog/10 {
		t.Fatalf("only %d Machines wait for a record: the test proves nothing", before)
	}
	began := time.Now()
	requests := map[string]string{}
	for name, credential := range credentials {
		j.stop(name)
		request, err := j.request(j.as(credential), name, approvertest.NewKey(t))
		switch {
		case err == nil:
			requests[name] = request
		case !kerrors.IsUnauthorized(err): // else the credential is revoked already
			t.Fatal(err)
		}
	}
	for name, uid := range uids {
		eventually(t, func() bool {
			if request := requests[name]; request != "" && decided(j.csr(request)) != "" {
				t.Fatalf("%v after the quarantine the request of %s is %s", time.Since(began), name, decided(j.csr(request)))
			}
			return j.record(uid).Status.Quarantined
		}, func() string { return "the quarantine of " + name + " is not on its record" })
	}
	t.Logf("the quarantines were on the records after %v", time.Since(began))
	// The order matters, and not how fast this computer is.
	after := backlog + victims - j.made()
	t.Logf("%d Machines waited for a record before, and %d after", before, after)
	if after == 0 {
		t.Errorf("the quarantines waited until all of the %d records were made", before)
	}
	for name, uid := range uids {
		eventually(t, func() bool {
			credentials := j.record(uid).Status.Credentials
			return len(credentials) > 0 && credentials[0].Revoked
		}, func() string { return "the credential of " + name + " is not revoked" })
		if request := requests[name]; request != "" && decided(j.csr(request)) != "" {
			t.Errorf("the request of %s is %s", name, decided(j.csr(request)))
		}
	}
	if len(requests) > 0 {
		eventually(t, func() bool { return strings.Contains(p.log.everything(), `"reason":"Quarantined"`) },
			func() string { return "the audit log has no Quarantined" })
	}
}
