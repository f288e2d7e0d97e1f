// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/manifest"
)

var modified = time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)

const (
	ek1 = "11a1b2c3d4e5f60718293a4b5c6d7e8f11a1b2c3d4e5f60718293a4b5c6d7e8f"
	ek2 = "22a1b2c3d4e5f60718293a4b5c6d7e8f11a1b2c3d4e5f60718293a4b5c6d7e8f"
	ek3 = "33a1b2c3d4e5f60718293a4b5c6d7e8f11a1b2c3d4e5f60718293a4b5c6d7e8f"
)

// The output of `oc get machine -o yaml`, shortened.
const machineAPIYAML = `apiVersion: machine.openshift.io/v1beta1
kind: Machine
metadata:
  annotations:
    mcs-attest.dev/ek-sha256: "` + ek1 + `, ` + ek2 + `"
    mcs-attest.dev/pool: infra
  creationTimestamp: "2026-11-21T03:30:00Z"
  labels:
    machine.openshift.io/cluster-api-cluster: demo-x7k2p
    machine.openshift.io/cluster-api-machine-role: worker
    machine.openshift.io/cluster-api-machine-type: worker
  name: demo-worker-0
  namespace: openshift-machine-api
  uid: 0d5a3b32-6a5e-4a59-9d2a-51a0d6a2a7aa
spec:
  authoritativeAPI: MachineAPI
  lifecycleHooks: {}
  providerID: aws:///eu-central-1a/i-0123456789abcdef0
  providerSpec:
    value:
      userDataSecret:
        name: worker-user-data
status:
  addresses:
  - {address: 10.0.1.5, type: InternalIP}
  - {address: ip-10-0-1-5.ec2.internal, type: InternalDNS}
  phase: Provisioned
`

const clusterAPIYAML = `apiVersion: cluster.x-k8s.io/v1beta2
kind: Machine
metadata:
  name: demo-cp-0
  namespace: openshift-cluster-api
  labels:
    cluster.x-k8s.io/control-plane: ""
spec:
  clusterName: demo
  bootstrap:
    dataSecretName: master-user-data
  providerID: gce://project/zone/demo-cp-0
status:
  nodeRef:
    name: demo-cp-0
  phase: Running
`

const enrollmentYAML = `apiVersion: mcs-attest.dev/v1alpha1
kind: MachineAttestation
metadata:
  name: host-7
  namespace: openshift-machine-api
spec:
  machineRef:
    name: demo-worker-0
  ekSHA256:
  - ` + ek3 + `
  expectedProviderID: aws:///eu-central-1a/i-0123456789abcdef0
  reattest:
    until: 2026-11-21T10:00:00Z
  notAfter: 2027-01-01T00:00:00Z
`

const standInYAML = `apiVersion: mcs-attest.dev/v1alpha1
kind: MachineAttestation
metadata:
  name: rack-1
spec:
  pool: worker
  ekSHA256: [` + ek1 + `]
`

const hostYAML = `apiVersion: metal3.io/v1alpha1
kind: BareMetalHost
metadata:
  name: rack7
  namespace: ns
  creationTimestamp: "2026-11-20T03:30:00Z"
  annotations:
    mcs-attest.dev/ek-sha256: "` + ek1 + `"
spec:
  consumerRef:
    apiVersion: infrastructure.cluster.x-k8s.io/v1beta1
    kind: Metal3Machine
    name: metal-1
`

// parse parses manifests that must be valid.
func parse(t testing.TB, raw ...string) Manifests {
	t.Helper()
	m, problems := Parse("m.yaml", []byte(strings.Join(raw, "---\n")), modified)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return m
}

func TestParse(t *testing.T) {
	in := parse(t, machineAPIYAML, clusterAPIYAML, enrollmentYAML, standInYAML)
	if len(in.Machines) != 2 || len(in.Enrollments) != 2 {
		t.Fatalf("%d Machines, %d enrollments", len(in.Machines), len(in.Enrollments))
	}
	m := in.Machines[0]
	if m.String() != "openshift-machine-api/demo-worker-0" || m.UID != "0d5a3b32-6a5e-4a59-9d2a-51a0d6a2a7aa" ||
		m.ProviderID != "aws:///eu-central-1a/i-0123456789abcdef0" || !m.Created.Equal(modified.Add(-30*time.Minute)) ||
		m.Deleting || m.Joined() || m.Phase != "Provisioned" || m.UserDataSecret != "worker-user-data" ||
		strings.Join(m.Pools, " ") != "infra worker" || strings.Join(m.EKSHA256, " ") != ek1+" "+ek2 ||
		strings.Join(m.InternalDNS, " ") != "ip-10-0-1-5.ec2.internal" || strings.Join(m.Addresses, " ") != "10.0.1.5" {
		t.Errorf("Machine API: %+v", m)
	}
	c := in.Machines[1]
	if c.NodeRef != "demo-cp-0" || !c.Joined() || strings.Join(c.Pools, " ") != "master" || !c.Created.Equal(modified) ||
		c.UserDataSecret != "master-user-data" || c.ProviderID != "gce://project/zone/demo-cp-0" {
		t.Errorf("Cluster API: %+v", c)
	}
	// The forms of other platforms. Another namespace's Secret is not the Machine's.
	for value, want := range map[string]string{
		"{userData: {name: worker-user-data-managed}}":                           "worker-user-data-managed",
		"{userData: {name: worker-user-data, namespace: openshift-machine-api}}": "worker-user-data",
		"{userData: {name: worker-user-data, namespace: elsewhere}}":             "",
		"{userData: a script}":                                 "",
		"{userDataSecret: {name: one}, userData: {name: two}}": "one",
	} {
		raw := strings.Replace(machineAPIYAML, "\n      userDataSecret:\n        name: worker-user-data\n",
			" "+value+"\n", 1)
		if got := parse(t, raw).Machines[0].UserDataSecret; got != want {
			t.Errorf("%s: %q, want %q", value, got, want)
		}
	}
	// Each of the two labels, and the annotation, permits a pool.
	pools := strings.NewReplacer("machine-role: worker", "machine-role: gpu").Replace(machineAPIYAML)
	if got := parse(t, pools).Machines[0].Pools; strings.Join(got, " ") != "gpu infra worker" {
		t.Errorf("pools %v", got)
	}
	worker := parse(t, strings.Replace(clusterAPIYAML, "    cluster.x-k8s.io/control-plane: \"\"\n", "    a: b\n",
		1)).Machines[0]
	if strings.Join(worker.Pools, " ") != "worker" {
		t.Errorf("Cluster API worker: %v", worker.Pools)
	}
}

// The time of a file is that of its objects which have none.
func TestParse_CreationTimes(t *testing.T) {
	created := modified.Add(-time.Hour)
	line := "\n  creationTimestamp: \"" + created.Format(time.RFC3339) + "\"\n"
	for raw, want := range map[string]time.Time{standInYAML: modified,
		swap("\n  name: rack-1\n", line+"  name: rack-1\n")(standInYAML): created} {
		if m := index(t, parse(t, raw)).Machines()[0]; !m.Created.Equal(want) {
			t.Errorf("a stand-in: %v, want %v", m.Created, want)
		}
	}
	const zero = "\n  creationTimestamp: \"0001-01-01T00:00:00Z\"\n"
	for raw, want := range map[string]struct {
		at      time.Time
		undated bool
	}{
		machineAPIYAML: {modified.Add(-30 * time.Minute), false},
		clusterAPIYAML: {modified, true},
		swap("\n  name: demo-cp-0\n", zero+"  name: demo-cp-0\n")(clusterAPIYAML): {modified, true},
	} {
		if m := parse(t, raw).Machines[0]; !m.Created.Equal(want.at) || m.Undated != want.undated {
			t.Errorf("a Machine: %v, undated %v, want %+v", m.Created, m.Undated, want)
		}
	}
	e := parse(t, hostYAML).Enrollments[0]
	if want := modified.Add(-24*time.Hour - 30*time.Minute); !e.CreationTimestamp.Time.Equal(want) {
		t.Errorf("a host: %v, want %v", e.CreationTimestamp, want)
	}
}

// A Machine's progress (rule 11 of docs/security-rules.md): what is not clear counts as joined.
func TestParse_Progress(t *testing.T) {
	for status, want := range map[string]struct{ deleting, joined bool }{
		"phase: Provisioned": {false, false}, "phase: Deleting": {true, false}, "phase: Deleted": {true, false},
		"phase: Running": {false, true}, "nodeRef: {name: n}": {false, true}, "nodeRef: {}": {false, true},
		"nodeRef: null": {false, false},
	} {
		m := parse(t, swap("phase: Provisioned", status)(machineAPIYAML)).Machines[0]
		if m.Deleting != want.deleting || m.Joined() != want.joined {
			t.Errorf("%s: deleting %v, joined %v", status, m.Deleting, m.Joined())
		}
	}
}

func TestUIDIsStable(t *testing.T) {
	uid := func(raw string) string { return parse(t, raw).Machines[0].UID }
	first := uid(clusterAPIYAML)
	if first != "bb857b97-3d3d-5d52-a497-5c0d5b684e1d" {
		t.Errorf("UID %s: records of machines without a UID would be lost", first)
	}
	if uid(strings.Replace(clusterAPIYAML, "v1beta2", "v1beta1", 1)) != first {
		t.Error("the UID depends on the API version")
	}
	if uid(strings.Replace(clusterAPIYAML, "name: demo-cp-0", "name: demo-cp-1", 1)) == first {
		t.Error("two names have one UID")
	}
}

func TestParse_ReportsTheFault(t *testing.T) {
	for name, c := range map[string]struct{ in, old, new, want string }{
		"an EK hash that is too short": {machineAPIYAML, ek1, "11a1",
			`m.yaml:5: mcs-attest.dev/ek-sha256: "11a1" has 4 characters`},
		"an EK hash that is not hexadecimal": {machineAPIYAML, ek1, "z" + ek1[1:], "m.yaml:5: mcs-attest.dev/ek-sha256: \"z"},
		"a comma too many":                   {machineAPIYAML, ek1 + ",", ek1 + ",,", "has 0 characters"},
		"a provider id that is a number": {machineAPIYAML, "aws:///eu-central-1a/i-0123456789abcdef0", "17",
			"m.yaml:18: spec.providerID is a number; a string is required"},
		"a Machine without a name": {machineAPIYAML, "  name: demo-worker-0\n", "", "m.yaml:3: the Machine has no name"},
		"a time that is none":      {machineAPIYAML, `"2026-11-21T03:30:00Z"`, "yesterday", "m.yaml:7: "},
		"a MachineSet": {machineAPIYAML, "kind: Machine", "kind: MachineSet",
			"m.yaml:2: MachineSet of machine.openshift.io/v1beta1 is not supported here; Machine of " +
				"machine.openshift.io/v1beta1 or"},
		"a version that is to come": {machineAPIYAML, "v1beta1", "v1",
			"Machine of machine.openshift.io/v1 is not supported here"},
		"another kind of Cluster API": {clusterAPIYAML, "kind: Machine", "kind: MachineSet",
			"MachineSet of cluster.x-k8s.io/v1beta2 is not supported here"},
		"an old version of Cluster API": {clusterAPIYAML, "v1beta2", "v1alpha4",
			"Machine of cluster.x-k8s.io/v1alpha4 is not supported here"},
		"a Machine of another API": {clusterAPIYAML, "cluster.x-k8s.io", "example.com",
			"Machine of example.com/v1beta2 is not supported here"},
		"another kind of metal3": {hostYAML, "kind: BareMetalHost", "kind: HostClaim",
			"HostClaim of metal3.io/v1alpha1 is not supported here"},
		"a host of another API": {hostYAML, "metal3.io", "example.com",
			"BareMetalHost of example.com/v1alpha1 is not supported here"},
		"another kind of this API": {standInYAML, "kind: MachineAttestation", "kind: AttestationPolicy",
			"AttestationPolicy of mcs-attest.dev/v1alpha1 is not supported here"},
		"another version of this API": {standInYAML, "v1alpha1", "v1",
			"MachineAttestation of mcs-attest.dev/v1 is not supported here"},
		"a host's name that is a number": {hostYAML, "  name: rack7", "  name: 7", "m.yaml:4: metadata.name is a number"},
		"a Cluster API provider id that is a number": {clusterAPIYAML, "gce://project/zone/demo-cp-0", "17",
			"spec.providerID is a number"},
		"a pending machine with a TPM": {standInYAML, "rack-1\nspec:\n  pool: worker", "pending-0\nspec:",
			"spec: neither machineRef nor pool"},
		"a pending machine with a pool": {standInYAML, "rack-1\nspec:\n  pool: worker\n  ekSHA256: [" + ek1 + "]",
			"pending-0\nspec:\n  pool: worker", "spec: no field identifies the machine"},
		"a MachineAttestation of nothing": {standInYAML, "  pool: worker\n  ekSHA256: [" + ek1 + "]", "  quarantined: true",
			"spec: neither machineRef nor pool"},
		"an EK hash of the wrong length": {standInYAML, ek1, ek1[:62], "but a SHA-256 has 64 hexadecimal digits"},
		"quarantine misspelled": {enrollmentYAML, "spec:", "spec:\n  quarantine: true",
			`m.yaml:7: unknown field "spec.quarantine"; known fields: `},
		"neither Machine nor pool": {standInYAML, "  pool: worker\n", "", "m.yaml:5: spec: neither machineRef nor pool"},
		"both Machine and pool": {enrollmentYAML, "spec:", "spec:\n  pool: worker",
			"m.yaml:7: spec.pool: pool and machineRef are both set"},
		"a stand-in for anyone": {standInYAML, "  ekSHA256: [" + ek1 + "]\n",
			"", "m.yaml:5: spec: no field identifies the machine; set ekSHA256 or expectedProviderID"},
		"a hash twice":    {standInYAML, ek1, ek1 + ", " + ek1, "m.yaml:7: spec.ekSHA256[1]: the hash is listed twice"},
		"a hash of zeros": {standInYAML, ek1, `"` + strings.Repeat("0", 64) + `"`, "a hash of only zeros is not valid"},
		"a machineRef without a name": {enrollmentYAML, "    name: demo-worker-0", "    namespace: x",
			"spec.machineRef: no name"},
		"a grant without an end": {enrollmentYAML, "    until: 2026-11-21T10:00:00Z", "    until: null",
			"spec.reattest: the grant has no end"},
		"a MachineAttestation without name": {standInYAML, "  name: rack-1", "  labels: {}",
			"metadata.name: the object has no name"},
	} {
		t.Run(name, func(t *testing.T) {
			in, problems := Parse("m.yaml", []byte(strings.Replace(c.in, c.old, c.new, 1)), modified)
			if !manifest.Failed(problems) || len(in.Machines)+len(in.Enrollments) > 0 {
				t.Fatalf("accepted: %v", problems)
			}
			if got := problems[0].Error(); !strings.Contains(got, c.want) {
				t.Errorf("problem %q\nexpected %q", got, c.want)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(machineAPIYAML))
	f.Add([]byte(clusterAPIYAML + "---\n" + machineAPIYAML))
	f.Add([]byte(enrollmentYAML + "---\n" + standInYAML))
	f.Add([]byte(enrollmentYAML + "---\n" + machineAPIYAML + "---\n" + enrollmentYAML))
	f.Fuzz(func(t *testing.T, raw []byte) {
		in, problems := Parse("f", raw, modified)
		if manifest.Failed(problems) && len(in.Machines)+len(in.Enrollments) > 0 {
			t.Error("manifests beside an error")
		}
		ix, _ := NewIndex(in, nil)
		for _, m := range ix.Machines() {
			id := Identity{ProviderIDs: []string{m.ProviderID}, MachineUID: m.UID}
			found, err := ix.Match(id, Rules{Pool: "worker", Now: modified, MaxAge: time.Hour})
			if err == nil && found != m {
				t.Errorf("%s was found as %s", m, found)
			}
		}
	})
}
