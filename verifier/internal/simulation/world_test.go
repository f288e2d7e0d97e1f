// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"log/slog"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/softtpmtest"
)

const (
	machines = "openshift-machine-api"
	mco      = "openshift-machine-config-operator"
)

// world is one run: the cluster, its processes and its machines.
type world struct {
	fixtures *fixtures
	server   *apiServer
	dice     *dice
	trace    *trace
	log      *slog.Logger
}

func newWorld(f *fixtures, seed uint64, log *slog.Logger, print func(string)) (*world, error) {
	s, err := newServer()
	if err != nil {
		return nil, err
	}
	w := &world{fixtures: f, server: s, dice: newDice(seed), log: log,
		trace: &trace{print: print, began: time.Now()}}
	return w, w.install()
}

// install creates what an installation leaves in the cluster.
func (w *world) install() error {
	encoded := func(b []byte) string { return base64.StdEncoding.EncodeToString(b) }
	for _, o := range []struct {
		resource, namespace string
		content             fields
	}{
		{"namespaces", "", fields{"metadata": fields{"name": machines}}},
		{"namespaces", "", fields{"metadata": fields{"name": mco}}},
		{"namespaces", "", fields{"metadata": fields{"name": "mcs-attest"}}},
		{"secrets", mco, fields{"metadata": fields{"name": "machine-config-server-tls"}, "type": "kubernetes.io/tls",
			"data": fields{"tls.crt": encoded(w.fixtures.serving.Certificate),
				"tls.key": encoded(w.fixtures.serving.Key.Expose())}}},
		{"configmaps", mco, fields{"metadata": fields{"name": "machine-config-server-ca"},
			"data": fields{"ca-bundle.crt": string(w.fixtures.ca.Certificate)}}},
		{"attestationpolicies", "", fields{"metadata": fields{"name": "metal"}, "spec": fields{
			"pools": []string{"worker"}, "mode": "Enforce", "evidence": []fields{{"all": []string{"tpm2"}}},
			"tpm2": fields{"endorsements": []string{"enrolled"}}}}},
	} {
		if _, err := w.create(o.resource, o.namespace, o.content); err != nil {
			return err
		}
	}
	return nil
}

// create creates an object as an administrator, without a delay.
func (w *world) create(resource, namespace string, content fields) (*object, error) {
	return w.server.create(write{by: "admin", kind: named(resource), namespace: namespace}, content)
}

func named(resource string) *kind {
	for _, k := range kinds {
		if k.resource == resource {
			return k
		}
	}
	panic("no kind " + resource)
}

// machine creates a Machine whose EK is enrolled, and the machine itself.
func (w *world) machine(name string) (*machine, error) {
	m := &machine{name: name, address: fmt.Sprintf("192.0.2.%d:40000", w.dice.roll("address").IntN(250)+1)}
	var err error
	if m.tpm, err = softtpmtest.New(); err != nil {
		return nil, err
	}
	_, err = w.create("machines", machines, fields{
		"metadata": fields{
			"name": name, "labels": fields{"machine.openshift.io/cluster-api-machine-role": "worker",
				"machine.openshift.io/cluster-api-machine-type": "worker"},
			"annotations": fields{v1alpha1.AnnotationEKSHA256: hex.EncodeToString(m.tpm.EKSPKI[:])},
		},
		"spec": fields{"providerSpec": fields{"value": fields{"userDataSecret": fields{"name": "worker-user-data"}}}},
	})
	if err == nil {
		_, err = w.status(name, fields{"addresses": []fields{{"type": "InternalDNS", "address": name}}})
	}
	return m, err
}

// status sets fields of the status of a Machine, as the machine-api does.
func (w *world) status(name string, set fields) (*object, error) {
	return w.server.change(write{by: "machine-api", kind: named("machines"), namespace: machines, name: name,
		sub: "status"}, func(now fields) (fields, error) {
		now["status"] = merged(section(now, "status"), set)
		return now, nil
	})
}

// trace prints what happens, in order.
type trace struct {
	print func(string) // optional
	began time.Time
}

func (t *trace) add(what string, code int) {
	if t.print != nil {
		t.print(fmt.Sprintf("%v %s %d\n", time.Since(t.began), what, code))
	}
}
