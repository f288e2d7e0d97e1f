// SPDX-License-Identifier: Apache-2.0

package approver

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// A credential that no longer counts proves nothing, and the explanation has the cause.
func TestCredential_ThatNoLongerCounts(t *testing.T) {
	for want, change := range map[string]func(*v1alpha1.CredentialStatus){
		"of openshift-machine-api/worker-0 was revoked": func(c *v1alpha1.CredentialStatus) { c.Revoked = true },
		"of openshift-machine-api/worker-0 expired at 2026-11-21T12:00:00Z": func(c *v1alpha1.CredentialStatus) {
			c.Expiry = metav1.NewTime(now)
		},
	} {
		in := honest()
		former := *in.own() // an earlier one that is valid
		former.ID = "JTI=former"
		in.fake.records[0].Status.Credentials = append([]v1alpha1.CredentialStatus{former},
			in.fake.records[0].Status.Credentials...)
		change(&in.fake.records[0].Status.Credentials[1])
		d := in.decide()
		if last := d.Checks[len(d.Checks)-1]; d.Proven || d.Outcome != Refuse || last.Name != "credential" ||
			!strings.Contains(last.Detail, want) {
			t.Errorf("proven %v, %+v, expected %q", d.Proven, last, want)
		}
	}
	if got := expired(recordOf("worker-0", uidA, credentialA), "JTI=2"); !strings.Contains(got, "no longer has") {
		t.Errorf("an index that is out of date: %q", got)
	}
}

// Administrators know a record by its Machine.
func TestOfRecord(t *testing.T) {
	rec := recordOf("a-uid", uidA, credentialA)
	for want, ref := range map[string]*v1alpha1.MachineReference{
		"openshift-machine-api/a-uid": nil, "openshift-machine-api/worker-0": {Name: "worker-0"},
		"ns/worker-0": {Namespace: "ns", Name: "worker-0"},
	} {
		rec.Spec.MachineRef = ref
		if got := ofRecord(rec); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// The reason of a refusal is the first one, also if there are others.
func TestContent_NamesTheFirstCause(t *testing.T) {
	in := honest()
	in.template.Subject.Organization = []string{"system:masters"}
	in.template.DNSNames = []string{"worker-0"}
	d := in.decide()
	want(t, d, Deny, reason.CSRContent)
	if !strings.Contains(d.Denial.Detail, "the organizations are") {
		t.Errorf("%v", d.Denial)
	}
	in = honest()
	in.fake.machines[1] = machineOf("worker-0", uidB)
	in.fake.machines[1].Name, in.fake.machines[1].APIVersion = "twin", "cluster.x-k8s.io/v1beta2"
	d = in.decide()
	want(t, d, Retry, reason.MachineAmbiguous)
	if !strings.Contains(d.Denial.Detail, "2 Machines, among them machine.openshift.io/v1beta1 openshift-machine-api/"+
		"worker-0 and cluster.x-k8s.io/v1beta2 openshift-machine-api/twin") {
		t.Errorf("%v", d.Denial)
	}
}

// Of a request that is not ours, only what the API server wrote is read.
func TestIgnored_EndsTheChecks(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*input)
		checks int
	}{
		"another signer":    {func(in *input) { in.csr.Spec.SignerName = "example.com/x" }, 1},
		"an approved one":   {func(in *input) { in.condition(certificatesv1.CertificateApproved) }, 1},
		"another requester": {func(in *input) { in.csr.Spec.Username, in.csr.Spec.Request = "eve", []byte("x") }, 2},
	} {
		in := honest()
		c.change(in)
		d := in.decide()
		want(t, d, Ignore, 0)
		if len(d.Checks) != c.checks {
			t.Errorf("%s: %+v", name, d.Checks)
		}
	}
}

// A restore of etcd can remove the Node, the Machine's reference to it, and the approval, but not what the record says
// again: that there was a Node. Its certificate was issued, and the approval is not repeated.
func TestAttack_T58_AnApprovalIsNotRepeatedForAMachineThatHadANode(t *testing.T) {
	for name, in := range map[string]*input{"with its own credential": honest(), "with the attested key": certified()} {
		s := &in.fake.records[0].Status
		phase := s.Phase
		in.approved(in.sum(), "worker-0")
		s.Phase = phase
		for used, outcome := range map[bool]Outcome{false: Approve, true: Refuse} {
			s.Certificate.Used = used
			if d := in.decide(); d.Outcome != outcome || used && (d.Denial == nil || d.Denial.Code != reason.MachineJoined) {
				t.Errorf("%s, used %v: %s, %v", name, used, d.Outcome, d.Denial)
			}
		}
	}
}

// What the explanation says about a key that is accepted.
func TestKey_HasItsOrigin(t *testing.T) {
	for _, c := range []struct {
		want   string
		change func(*input)
	}{
		{"the first of this machine", func(*input) {}},
		{"already approved", func(in *input) { in.approved(in.sum(), "worker-0") }},
		{"the attested one", func(in *input) { in.fake.records[0].Status.CSRKeySHA256 = in.sum() }},
		{"the attested one", func(in *input) { *in = *certified() }},
		{"the attested one", func(in *input) { // its approval is on the record already
			*in = *certified()
			s := &in.fake.records[0].Status
			s.Certificate = &v1alpha1.CertificateStatus{Node: "worker-0", PublicKeySHA256: s.CSRKeySHA256}
		}},
		{"in place of dead, whose request csr-1 was not approved", func(in *input) {
			in.approved("dead", "worker-0")
			in.fake.records[0].Status.Certificate.Request, in.fake.pinned = "csr-1", nil
		}},
	} {
		in := honest()
		c.change(in)
		d := in.decide()
		if !slices.Contains(d.Checks, Check{"key", Passed, c.want}) {
			t.Errorf("%+v, expected %q", d.Checks, c.want)
		}
	}
}

// An enrollment quarantines what it names, whose instance it expects, or whose EK it has.
func TestQuarantines(t *testing.T) {
	type spec = v1alpha1.MachineAttestationSpec
	ref := func(namespace, name string) *v1alpha1.MachineReference {
		return &v1alpha1.MachineReference{Namespace: namespace, Name: name}
	}
	machines := []Machine{{Namespace: "m", Name: "worker-0", ProviderID: "azure:///A"}, {Namespace: "m", Name: "worker-1"}}
	recorded := &v1alpha1.MachineAttestation{ObjectMeta: metav1.ObjectMeta{Namespace: "r", Name: "a-uid"}}
	recorded.Spec.MachineRef = ref("", "worker-2")
	recorded.Status.Identity = v1alpha1.RecordedIdentity{EKSHA256: "ab", ProviderID: "aws:///i-2"}
	standIn := &v1alpha1.MachineAttestation{ObjectMeta: metav1.ObjectMeta{Namespace: "r", Name: "rack-0"}}
	for name, c := range map[string]struct {
		namespace, name string
		spec            spec
		want            bool
	}{
		"a Machine":                         {"x", "q", spec{MachineRef: ref("m", "worker-1")}, true},
		"a Machine of its own namespace":    {"m", "q", spec{MachineRef: ref("", "worker-1")}, true},
		"a Machine of another namespace":    {"x", "q", spec{MachineRef: ref("", "worker-1")}, false},
		"another Machine":                   {"m", "q", spec{MachineRef: ref("", "worker-9")}, false},
		"an instance":                       {"x", "q", spec{ExpectedProviderID: "azure:///a"}, true},
		"another instance":                  {"x", "q", spec{ExpectedProviderID: "aws:///i-9"}, false},
		"no instance":                       {"x", "q", spec{}, false},
		"the Machine of a record":           {"r", "q", spec{MachineRef: ref("", "worker-2")}, true},
		"the instance of a record":          {"x", "q", spec{ExpectedProviderID: "aws:///i-2"}, true},
		"the EK of a record":                {"x", "q", spec{EKSHA256: []string{"cd", "AB"}}, true},
		"another EK":                        {"x", "q", spec{EKSHA256: []string{"cd"}}, false},
		"an empty EK":                       {"x", "q", spec{EKSHA256: []string{""}}, false},
		"itself":                            {"r", "rack-0", spec{}, true},
		"one of its name, elsewhere":        {"x", "rack-0", spec{}, false},
		"one of the record's name":          {"r", "a-uid", spec{}, false},
		"one of its name that names others": {"r", "rack-0", spec{MachineRef: ref("x", "y")}, false},
	} {
		e := v1alpha1.MachineAttestation{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: c.name}, Spec: c.spec}
		all := []*v1alpha1.MachineAttestation{nil, recorded, standIn}
		if quarantines(&e, machines, all) {
			t.Errorf("%s: without a quarantine", name)
		}
		e.Spec.Quarantined = true
		if quarantines(&e, machines, all) != c.want {
			t.Errorf("%s: %v", name, !c.want)
		}
	}
	// They are searched where the machine's objects are.
	in := honest()
	in.fake.records[0].Namespace = "records"
	want(t, in.decide(), Approve, 0)
	if got := slices.Compact(slices.Sorted(slices.Values(in.fake.namespaces))); !slices.Equal(got,
		[]string{"openshift-machine-api", "records"}) {
		t.Errorf("searched in %q", got)
	}
}

func TestMachineFromObject(t *testing.T) {
	object := func(apiVersion, kind string, spec, status map[string]any) map[string]any {
		return map[string]any{"apiVersion": apiVersion, "kind": kind, "spec": spec, "status": status,
			"metadata": map[string]any{"namespace": "ns", "name": "one", "uid": "u"}}
	}
	const machineAPI, clusterAPI = groupMachineAPI + "/v1beta1", groupClusterAPI + "/v1beta2"
	type fields = map[string]any
	for name, c := range map[string]struct {
		object any
		want   *Machine // nil: an error
	}{
		"Machine API": {object(machineAPI, "Machine", fields{"providerID": "aws:///i-0"},
			fields{"nodeRef": fields{"name": "node-0"}}), &Machine{ProviderID: "aws:///i-0", NodeRef: "node-0",
			Authority: "MachineAPI"}},
		"Machine API that migrates": {object(machineAPI, "Machine", fields{"authoritativeAPI": "ClusterAPI"},
			fields{"authoritativeAPI": "Migrating"}), &Machine{Authority: "Migrating"}},
		"Machine API that is to migrate": {object(machineAPI, "Machine", fields{"authoritativeAPI": "ClusterAPI"}, nil),
			&Machine{Authority: "ClusterAPI"}},
		"Cluster API": {object(clusterAPI, "Machine", fields{"providerID": "gce://p/z/n"}, nil),
			&Machine{ProviderID: "gce://p/z/n"}},
		"a stand-in": {object(v1alpha1.APIVersion, "MachineAttestation", fields{"pool": "worker",
			"expectedProviderID": "aws:///i-0", "providerID": "x"}, fields{"nodeRef": fields{"name": "n"}}),
			&Machine{ProviderID: "aws:///i-0", StandIn: true}},
		"an enrollment": {object(v1alpha1.APIVersion, "MachineAttestation", fields{"pool": "worker",
			"machineRef": fields{"name": "one"}}, nil), nil},
		"a record":                {object(v1alpha1.APIVersion, "MachineAttestation", nil, nil), nil},
		"another kind":            {object(machineAPI, "MachineSet", nil, nil), nil},
		"another of Cluster API":  {object(clusterAPI, "MachineSet", nil, nil), nil},
		"a policy":                {object(v1alpha1.APIVersion, "AttestationPolicy", fields{"pool": "worker"}, nil), nil},
		"another API":             {object("example.com/v1", "Machine", nil, nil), nil},
		"another API's stand-in":  {object("example.com/v1", "MachineAttestation", fields{"pool": "worker"}, nil), nil},
		"a field of another type": {object(machineAPI, "Machine", fields{"providerID": 7}, nil), nil},
		"no JSON":                 {func() {}, nil},
	} {
		got, err := MachineFromObject(c.object)
		if c.want == nil {
			if err == nil {
				t.Errorf("%s: %+v", name, got)
			}
			continue
		}
		if err != nil || got.Namespace != "ns" || got.Name != "one" || got.UID != "u" ||
			got.ProviderID != c.want.ProviderID || got.NodeRef != c.want.NodeRef || got.Authority != c.want.Authority ||
			got.StandIn != c.want.StandIn {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	got := standInAddresses("rack-0", " 10.0.0.5, ,FD00::5,rack-0.example.com,")
	if !slices.Equal(got, []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "rack-0"}, {Type: corev1.NodeInternalIP, Address: "10.0.0.5"},
		{Type: corev1.NodeInternalIP, Address: "fd00::5"}, {Type: corev1.NodeHostName, Address: "rack-0.example.com"}}) {
		t.Errorf("%v", got)
	}
}

// Nothing is the name or the Node of a Machine that has none.
func TestMachine_WithoutNames(t *testing.T) {
	m := Machine{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalDNS}}}
	if m.is("") || m.named("") || m.hasName("") {
		t.Error("an empty name")
	}
	if got := (*Machine)(nil).String(); got != "" {
		t.Errorf("no Machine is printed as %q", got)
	}
}

func TestDisabled(t *testing.T) {
	for text, want := range map[string]bool{"": false, "nodeClientCert: {disabled: true}": true,
		"nodeClientCert: {disabled: false}": false} {
		if off, err := Disabled(text); off != want || err != nil {
			t.Errorf("%q: %v, %v", text, off, err)
		}
	}
	if _, err := Disabled("nodeClientCert: ["); err == nil {
		t.Error("what cannot be read is taken for enabled")
	}
}

func TestFromCSR_Approved(t *testing.T) {
	type condition = certificatesv1.CertificateSigningRequestCondition
	const approved, denied = certificatesv1.CertificateApproved, certificatesv1.CertificateDenied
	for name, c := range map[string]struct {
		conditions       []condition
		decided, granted bool
	}{
		"none":                 {nil, false, false},
		"approved":             {[]condition{{Type: approved, Status: corev1.ConditionTrue}}, true, true},
		"approved, not stated": {[]condition{{Type: approved}}, true, true},
		"not approved":         {[]condition{{Type: approved, Status: corev1.ConditionFalse}}, false, false},
		"denied":               {[]condition{{Type: denied, Status: corev1.ConditionTrue}}, true, false},
		"approved, then failed": {[]condition{{Type: approved, Status: corev1.ConditionTrue},
			{Type: certificatesv1.CertificateFailed, Status: corev1.ConditionTrue}}, true, true},
	} {
		in := honest().csr
		in.Status.Conditions = c.conditions
		if r := FromCSR(&in); r.Decided != c.decided || r.Approved != c.granted {
			t.Errorf("%s: decided %v, approved %v", name, r.Decided, r.Approved)
		}
	}
}
