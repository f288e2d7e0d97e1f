// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

const instance = "aws:///eu-central-1a/i-0123456789abcdef0"

func hash(t testing.TB, s string) EKHash {
	t.Helper()
	h, err := ParseEKHash(s)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func index(t testing.TB, in Manifests) *Index {
	t.Helper()
	ix, problems := NewIndex(in, nil)
	if manifest.Failed(problems) {
		t.Fatal(problems)
	}
	return ix
}

// fixture is what a case may change: the Machine demo-worker-0 of the test's manifests, the
// proven identity, and the rules. Unchanged, it is accepted.
type fixture struct {
	in    Manifests
	m     *Machine // in.Machines[0]
	id    Identity
	rules Rules
}

func newFixture(t testing.TB) *fixture {
	w := &fixture{
		in:    parse(t, machineAPIYAML),
		id:    Identity{EK: hash(t, ek1), ProviderIDs: []string{instance}},
		rules: Rules{Pool: "worker", Now: modified, MaxAge: 2 * time.Hour, EKEnrolled: true},
	}
	w.m = &w.in.Machines[0]
	return w
}

func (w *fixture) match(t testing.TB) (*Machine, reason.Code) {
	t.Helper()
	m, err := index(t, w.in).Match(w.id, w.rules)
	if err != nil {
		return m, reason.From(err).Code
	}
	return m, 0
}

// other adds a second Machine.
func (w *fixture) other(with func(*Machine)) {
	m := Machine{APIVersion: "machine.openshift.io/v1beta1", Kind: "Machine", Namespace: "openshift-machine-api",
		Name: "demo-worker-1",
		UID:  "other", Created: modified, Pools: []string{"worker"}, ProviderID: "aws:///eu-central-1a/i-other",
		source: manifest.Place{File: "o.yaml", Line: 1}}
	with(&m)
	w.in.Machines = append(w.in.Machines, m)
}

// enroll adds the MachineAttestation host-7 for demo-worker-0.
func (w *fixture) enroll(t testing.TB, with func(*v1alpha1.MachineAttestationSpec)) {
	a := v1alpha1.MachineAttestation{}
	a.Name, a.Namespace = "host-7", "openshift-machine-api"
	a.Spec.MachineRef = &v1alpha1.MachineReference{Name: "demo-worker-0"}
	with(&a.Spec)
	e, err := NewEnrollment(a)
	if err != nil {
		t.Fatal(err)
	}
	w.in.Enrollments = append(w.in.Enrollments, e)
}

func until(d time.Duration) *v1alpha1.ReattestGrant {
	return &v1alpha1.ReattestGrant{Until: metav1.NewTime(modified.Add(d))}
}

// Attack T40. Status rows E6, E7 and E8.
func TestAttack_T40_NoMachineThatMayAttest(t *testing.T) {
	if m, code := newFixture(t).match(t); code != 0 || m.Name != "demo-worker-0" {
		t.Fatalf("the honest machine: %v, %v", m, code)
	}
	for name, c := range map[string]struct {
		change func(*testing.T, *fixture)
		want   reason.Code
	}{
		"there is no Machine": {func(t *testing.T, w *fixture) {
			w.in.Machines = nil
			w.rules.EKEnrolled = false
		}, reason.MachineNotFound},
		"there is no Machine, and EKs must be enrolled": {func(t *testing.T, w *fixture) { w.in.Machines = nil },
			reason.EKNotEnrolled},
		"nothing was proven": {func(t *testing.T, w *fixture) { w.id = Identity{} }, reason.MachineNotFound},
		"an empty provider id matches no Machine that has none yet": {func(t *testing.T, w *fixture) {
			w.m.ProviderID = ""
			w.id = Identity{ProviderIDs: []string{""}}
		}, reason.MachineNotFound},
		"an EK of zeros": {func(t *testing.T, w *fixture) { w.id = Identity{EK: EKHash{}} }, reason.MachineNotFound},
		"an unknown UID": {func(t *testing.T, w *fixture) { w.id = Identity{MachineUID: "x"} }, reason.MachineNotFound},
		"the Machine's provider id is to come": {func(t *testing.T, w *fixture) { w.m.ProviderID = "" },
			reason.MachineNotFound},
		"a genuine instance without a Machine": {func(t *testing.T, w *fixture) {
			w.id = Identity{ProviderIDs: []string{instance + "0"}}
		}, reason.MachineNotFound},
		"a genuine TPM without a Machine": {func(t *testing.T, w *fixture) { w.id = Identity{EK: hash(t, ek3)} },
			reason.EKNotEnrolled},
		"a genuine TPM in another's instance": {func(t *testing.T, w *fixture) { w.id.EK = hash(t, ek3) },
			reason.EKNotEnrolled},
		"the same, EKs need not be enrolled": {func(t *testing.T, w *fixture) {
			w.id.EK = hash(t, ek3)
			w.rules.EKEnrolled = false
		}, reason.EKNotEnrolled},
		"two Machines have the instance": {func(t *testing.T, w *fixture) {
			w.other(func(m *Machine) { m.ProviderID = instance })
		}, reason.MachineAmbiguous},
		"the Machine is being deleted": {func(t *testing.T, w *fixture) { w.m.Deleting = true }, reason.MachineDeleting},
		"the Machine has failed":       {func(t *testing.T, w *fixture) { w.m.Phase = "Failed" }, reason.MachineDeleting},
		"the Machine is a Node":        {func(t *testing.T, w *fixture) { w.m.NodeRef = "n" }, reason.MachineJoined},
		"the Machine runs":             {func(t *testing.T, w *fixture) { w.m.Phase = "Running" }, reason.MachineJoined},
		"the Machine is too old": {func(t *testing.T, w *fixture) { w.rules.Now = w.m.Created.Add(2*time.Hour + 1) },
			reason.MachineTooOld},
		"no age is set":        {func(t *testing.T, w *fixture) { w.rules.MaxAge = 0 }, reason.MachineTooOld},
		"another pool":         {func(t *testing.T, w *fixture) { w.rules.Pool = "master" }, reason.MachinePool},
		"no pool":              {func(t *testing.T, w *fixture) { w.rules.Pool = "" }, reason.MachinePool},
		"another pool by case": {func(t *testing.T, w *fixture) { w.rules.Pool = "Worker" }, reason.MachinePool},
		"a Machine without any pool": {func(t *testing.T, w *fixture) { w.m.Pools = nil; w.rules.Pool = "" },
			reason.MachinePool},
		"quarantined": {func(t *testing.T, w *fixture) {
			w.enroll(t, func(s *v1alpha1.MachineAttestationSpec) { s.Quarantined = true })
		}, reason.Quarantined},
		"quarantined by one of two": {func(t *testing.T, w *fixture) {
			w.enroll(t, func(s *v1alpha1.MachineAttestationSpec) {})
			w.enroll(t, func(s *v1alpha1.MachineAttestationSpec) { s.Quarantined = true })
		}, reason.Quarantined},
		"quarantined by the first of two": {func(t *testing.T, w *fixture) {
			w.enroll(t, func(s *v1alpha1.MachineAttestationSpec) { s.Quarantined = true })
			w.enroll(t, func(s *v1alpha1.MachineAttestationSpec) {})
		}, reason.Quarantined},
		"the grant ends now": {func(t *testing.T, w *fixture) {
			w.m.NodeRef = "n"
			w.enroll(t, func(s *v1alpha1.MachineAttestationSpec) { s.Reattest = until(0) })
		}, reason.MachineJoined},
		"the grant has ended": {func(t *testing.T, w *fixture) {
			w.m.NodeRef = "n"
			w.enroll(t, func(s *v1alpha1.MachineAttestationSpec) { s.Reattest = until(-time.Second) })
		}, reason.MachineJoined},
		"the grant would last too long": {func(t *testing.T, w *fixture) {
			w.m.NodeRef = "n"
			w.enroll(t, func(s *v1alpha1.MachineAttestationSpec) { s.Reattest = until(25 * time.Hour) })
		}, reason.MachineJoined},
		"a grant does not open another pool": {func(t *testing.T, w *fixture) {
			w.m.NodeRef, w.rules.Pool = "n", "master"
			w.enroll(t, func(s *v1alpha1.MachineAttestationSpec) { s.Reattest = until(time.Hour) })
		}, reason.MachinePool},
		"the enrollment expects another instance": {func(t *testing.T, w *fixture) {
			w.enroll(t, func(s *v1alpha1.MachineAttestationSpec) { s.ExpectedProviderID = "aws:///eu-central-1a/i-x" })
		}, reason.EvidenceDisagrees},
		"the second enrollment expects another instance": {func(t *testing.T, w *fixture) {
			w.enroll(t, func(s *v1alpha1.MachineAttestationSpec) {})
			w.enroll(t, func(s *v1alpha1.MachineAttestationSpec) { s.ExpectedProviderID = "aws:///eu-central-1a/i-x" })
		}, reason.EvidenceDisagrees},
		"of two enrollments, the second expects another instance than the first": {func(t *testing.T, w *fixture) {
			w.enroll(t, func(s *v1alpha1.MachineAttestationSpec) { s.ExpectedProviderID = instance })
			w.enroll(t, func(s *v1alpha1.MachineAttestationSpec) { s.ExpectedProviderID = "aws:///eu-central-1a/i-x" })
		}, reason.EvidenceDisagrees},
		"the enrollment has ended": {func(t *testing.T, w *fixture) {
			ended := metav1.NewTime(modified)
			w.enroll(t, func(s *v1alpha1.MachineAttestationSpec) { s.EKSHA256, s.NotAfter = []string{ek3}, &ended })
			w.id.EK = hash(t, ek3)
		}, reason.EKNotEnrolled},
		"the only identity is an enrollment that has ended": {func(t *testing.T, w *fixture) {
			ended := metav1.NewTime(modified)
			w.enroll(t, func(s *v1alpha1.MachineAttestationSpec) { s.EKSHA256, s.NotAfter = []string{ek3}, &ended })
			w.id, w.rules.EKEnrolled = Identity{EK: hash(t, ek3)}, false
		}, reason.EKNotEnrolled},
		"a genuine TPM in an instance without an enrolled one": {func(t *testing.T, w *fixture) { w.m.EKSHA256 = nil },
			reason.EKNotEnrolled},
		"another TPM than a MachineAttestation enrolls, EKs need not be enrolled": {func(t *testing.T, w *fixture) {
			w.m.EKSHA256, w.rules.EKEnrolled = nil, false
			w.enroll(t, func(s *v1alpha1.MachineAttestationSpec) { s.EKSHA256 = []string{ek3} })
		}, reason.EKNotEnrolled},
		"a genuine TPM in the instance of another Machine, without an instance of its own": {
			func(t *testing.T, w *fixture) {
				w.m.ProviderID = ""
				w.other(func(m *Machine) { m.ProviderID = instance })
			}, reason.EvidenceDisagrees},
		"no record, and a Machine without a UID": {func(t *testing.T, w *fixture) { w.m.UID, w.id = "", Identity{} },
			reason.MachineNotFound},
		"enrolled by the name of a Metal3Machine, which only a host may": {func(t *testing.T, w *fixture) {
			w.m.EKSHA256, w.m.metal3 = nil, "metal-1"
			w.enroll(t, func(s *v1alpha1.MachineAttestationSpec) {
				s.MachineRef.Kind, s.MachineRef.Name, s.EKSHA256 = kindMetal3Machine, "metal-1", []string{ek1}
			})
			w.id = Identity{EK: hash(t, ek1)}
		}, reason.MachineNotFound},
		"enrolled for another kind of object": {func(t *testing.T, w *fixture) {
			w.m.EKSHA256 = nil
			w.enroll(t, func(s *v1alpha1.MachineAttestationSpec) {
				s.MachineRef.Kind, s.EKSHA256 = "MachineSet", []string{ek1}
			})
			w.id = Identity{EK: hash(t, ek1)}
		}, reason.MachineNotFound},
		"enrolled for a Machine of the other API": {func(t *testing.T, w *fixture) {
			w.m.EKSHA256 = nil
			w.enroll(t, func(s *v1alpha1.MachineAttestationSpec) {
				s.MachineRef.APIVersion, s.EKSHA256 = groupClusterAPI+"/v1beta2", []string{ek1}
			})
			w.id = Identity{EK: hash(t, ek1)}
		}, reason.MachineNotFound},
		"the enrolled Machine does not exist yet": {func(t *testing.T, w *fixture) {
			w.in.Machines = nil
			w.enroll(t, func(s *v1alpha1.MachineAttestationSpec) { s.EKSHA256 = []string{ek1} })
		}, reason.MachineNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			c.change(t, w)
			if m, code := w.match(t); code != c.want || m != nil {
				t.Errorf("%v, %v; expected %v", m, code, c.want)
			}
		})
	}
}

func TestMatchAccepts(t *testing.T) {
	for name, change := range map[string]func(*testing.T, *fixture){
		"only by EK":               func(t *testing.T, w *fixture) { w.id.ProviderIDs = nil },
		"by its other EK":          func(t *testing.T, w *fixture) { w.id.EK = hash(t, ek2) },
		"only by instance":         func(t *testing.T, w *fixture) { w.id.EK = EKHash{} },
		"by its record":            func(t *testing.T, w *fixture) { w.id = Identity{MachineUID: w.m.UID} },
		"by two cloud statements":  func(t *testing.T, w *fixture) { w.id.ProviderIDs = []string{instance, instance} },
		"at the end of its window": func(t *testing.T, w *fixture) { w.rules.Now = w.m.Created.Add(2 * time.Hour) },
		"in its other pool":        func(t *testing.T, w *fixture) { w.rules.Pool = "infra" },
		"an Azure id in another case": func(t *testing.T, w *fixture) {
			w.m.ProviderID = "azure:///subscriptions/A/resourceGroups/Rg/x"
			w.id.ProviderIDs = []string{"azure:///subscriptions/a/resourcegroups/rg/X"}
		},
		"by an EK enrolled through a MachineAttestation": func(t *testing.T, w *fixture) {
			w.m.EKSHA256 = nil
			w.enroll(t, func(s *v1alpha1.MachineAttestationSpec) { s.EKSHA256 = []string{strings.ToUpper(ek3)} })
			w.id.EK = hash(t, ek3)
		},
		"by an endorsed EK without enrollment, and the cloud names the Machine": func(t *testing.T, w *fixture) {
			w.m.EKSHA256, w.rules.EKEnrolled = nil, false
		},
		"again although too old, since it attested before": func(t *testing.T, w *fixture) {
			w.rules.Now = w.m.Created.Add(100 * time.Hour)
			w.id.MachineUID = w.m.UID
		},
		"joined and old, with a grant": func(t *testing.T, w *fixture) {
			w.m.NodeRef, w.m.Created = "n", modified.Add(-1000*time.Hour)
			w.enroll(t, func(s *v1alpha1.MachineAttestationSpec) { s.Reattest = until(24 * time.Hour) })
		},
		"by an enrollment that has not ended": func(t *testing.T, w *fixture) {
			ends := metav1.NewTime(modified.Add(time.Second))
			w.enroll(t, func(s *v1alpha1.MachineAttestationSpec) { s.EKSHA256, s.NotAfter = []string{ek3}, &ends })
			w.id.EK = hash(t, ek3)
		},
		"by its own EK, which an enrollment that has ended also has": func(t *testing.T, w *fixture) {
			ended := metav1.NewTime(modified)
			w.enroll(t, func(s *v1alpha1.MachineAttestationSpec) { s.EKSHA256, s.NotAfter = []string{ek1}, &ended })
		},
		"the record is that of a Machine that was deleted": func(t *testing.T, w *fixture) { w.id.MachineUID = "deleted" },
		"an ended enrollment for a former Machine does not count": func(t *testing.T, w *fixture) {
			ended := metav1.NewTime(modified.Add(-time.Hour))
			w.other(func(m *Machine) { m.Name = "former" })
			w.enroll(t, func(s *v1alpha1.MachineAttestationSpec) {
				s.MachineRef.Name, s.EKSHA256, s.NotAfter = "former", []string{ek1}, &ended
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			change(t, w)
			if m, code := w.match(t); code != 0 || m.Name != "demo-worker-0" {
				t.Errorf("%v, %v", m, code)
			}
		})
	}
}

// Attack T42, the part without a record: the same EK for a second Machine, a clone, one
// machine's TPM with another's document.
func TestAttack_T42_OneIdentityTwoMachines(t *testing.T) {
	if _, code := newFixture(t).match(t); code != 0 {
		t.Fatalf("the honest machine: %v", code)
	}
	for name, c := range map[string]struct {
		change func(*testing.T, *fixture)
		want   reason.Code
	}{
		"the EK is enrolled for a second Machine": {func(t *testing.T, w *fixture) {
			w.other(func(m *Machine) { m.EKSHA256 = []string{ek1} })
		}, reason.MachineAmbiguous},
		"the same, and no cloud statement": {func(t *testing.T, w *fixture) {
			w.other(func(m *Machine) { m.EKSHA256 = []string{ek1} })
			w.id.ProviderIDs = nil
		}, reason.MachineAmbiguous},
		"by a MachineAttestation": {func(t *testing.T, w *fixture) {
			w.other(func(m *Machine) {})
			w.enroll(t, func(s *v1alpha1.MachineAttestationSpec) {
				s.MachineRef.Name, s.EKSHA256 = "demo-worker-1", []string{ek1}
			})
		}, reason.MachineAmbiguous},
		"by a stand-in": {func(t *testing.T, w *fixture) {
			w.in.Enrollments = parse(t, standInYAML).Enrollments
		}, reason.MachineAmbiguous},
		"a clone has the TPM and another instance with a Machine": {func(t *testing.T, w *fixture) {
			w.other(func(m *Machine) {})
			w.id.ProviderIDs = []string{"aws:///eu-central-1a/i-other"}
		}, reason.EvidenceDisagrees},
		"a clone has the TPM and another instance without one": {func(t *testing.T, w *fixture) {
			w.id.ProviderIDs = []string{"aws:///eu-central-1a/i-unknown"}
		}, reason.EvidenceDisagrees},
		"two cloud statements name two instances": {func(t *testing.T, w *fixture) {
			w.other(func(m *Machine) {})
			w.id = Identity{ProviderIDs: []string{instance, "aws:///eu-central-1a/i-other"}}
		}, reason.EvidenceDisagrees},
		"one of two statements names an instance without a Machine": {func(t *testing.T, w *fixture) {
			w.id.ProviderIDs = []string{instance, "aws:///eu-central-1a/i-unknown"}
		}, reason.EvidenceDisagrees},
		"the record is another Machine's": {func(t *testing.T, w *fixture) {
			w.other(func(m *Machine) {})
			w.id.MachineUID = "other"
		}, reason.EvidenceDisagrees},
		"the EK is enrolled for a Machine that is to come": {func(t *testing.T, w *fixture) {
			w.m.EKSHA256 = nil
			w.enroll(t, func(s *v1alpha1.MachineAttestationSpec) {
				s.MachineRef.Name, s.EKSHA256 = "demo-worker-9", []string{ek1}
			})
			w.rules.EKEnrolled = false
		}, reason.EvidenceDisagrees},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			c.change(t, w)
			if m, code := w.match(t); code != c.want || m != nil {
				t.Errorf("%v, %v; expected %v", m, code, c.want)
			}
		})
	}
}

// Status rows E13 and E14: no Machines and no API, enrollment by file.
func TestStandIn(t *testing.T) {
	in := parse(t, standInYAML)
	ix := index(t, in)
	rules := Rules{Pool: "worker", Now: modified.Add(1000 * time.Hour), MaxAge: time.Hour, EKEnrolled: true}
	m, err := ix.Match(Identity{EK: hash(t, ek1)}, rules)
	if err != nil || !m.StandIn || m.String() != "default/rack-1" || m.Enrollment == nil || m.UID == "" {
		t.Fatalf("%+v, %v", m, err)
	}
	for name, c := range map[string]struct {
		id   Identity
		pool string
		want reason.Code
	}{
		"another pool": {Identity{EK: hash(t, ek1)}, "master", reason.MachinePool},
		"another TPM":  {Identity{EK: hash(t, ek2)}, "worker", reason.EKNotEnrolled},
		"an unexpected cloud": {Identity{EK: hash(t, ek1), ProviderIDs: []string{instance}}, "worker",
			reason.MachineNotFound},
		"the UID of its name":  {Identity{MachineUID: "default/rack-1"}, "worker", reason.MachineNotFound},
		"another TPM's record": {Identity{EK: hash(t, ek2), MachineUID: m.UID}, "worker", reason.EKNotEnrolled},
	} {
		rules.Pool = c.pool
		if _, err := ix.Match(c.id, rules); reason.From(err) == nil || reason.From(err).Code != c.want {
			t.Errorf("%s: %v, expected %v", name, err, c.want)
		}
	}
	in = parse(t, strings.Replace(standInYAML, "spec:", "spec:\n  quarantined: true\n  expectedProviderID: "+instance, 1))
	if _, err := index(t, in).Match(Identity{ProviderIDs: []string{instance}},
		rules); reason.From(err).Code != reason.Quarantined {
		t.Errorf("a quarantined stand-in, by its instance: %v", err)
	}
}

// A quarantine is never lost, even if it is not clear which Machine it names.
func TestQuarantine_AppliesToEachMachineThatItMayMean(t *testing.T) {
	quarantined := swap("spec:", "spec:\n  quarantined: true")
	other := swap(ek1, ek2)(standInYAML)
	host8 := swap("host-7", "host-8")(enrollmentYAML)
	twin := swap("openshift-cluster-api", "openshift-machine-api")(
		strings.ReplaceAll(clusterAPIYAML, "demo-cp-0", "demo-worker-0"))
	for name, c := range map[string]struct {
		with, without []string
		machines      int
	}{
		"the first of two": {[]string{machineAPIYAML, quarantined(enrollmentYAML), host8},
			[]string{machineAPIYAML, enrollmentYAML, host8}, 1},
		"the second of two": {[]string{machineAPIYAML, enrollmentYAML, quarantined(host8)},
			[]string{machineAPIYAML, enrollmentYAML, host8}, 1},
		"the first stand-in of one name": {[]string{quarantined(standInYAML), other}, []string{standInYAML, other}, 1},
		"the second, which does not count otherwise": {[]string{standInYAML, quarantined(other)},
			[]string{standInYAML, other}, 1},
		"a name that two Machines have": {[]string{machineAPIYAML, twin, quarantined(enrollmentYAML)},
			[]string{machineAPIYAML, twin, enrollmentYAML}, 2},
		"the first of two for such a name": {[]string{machineAPIYAML, twin, quarantined(enrollmentYAML), host8},
			[]string{machineAPIYAML, twin, enrollmentYAML, host8}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			for want, raw := range map[bool][]string{true: c.with, false: c.without} {
				machines := index(t, parse(t, raw...)).Machines()
				if len(machines) != c.machines {
					t.Fatalf("Machines %v", machines)
				}
				for _, m := range machines {
					if m.Quarantined() != want {
						t.Errorf("%s %s is quarantined: %v", m.APIVersion, m, m.Quarantined())
					}
				}
			}
		})
	}
}

// Of two MachineAttestations of one Machine, what permits more counts: the later end of a grant, and
// the enrollment of an EK without an end. Their order does not matter.
func TestTwoEnrollments_TheLongerOneCounts(t *testing.T) {
	type spec = v1alpha1.MachineAttestationSpec
	hours := func(n int) *metav1.Time { at := metav1.NewTime(modified.Add(time.Duration(n) * time.Hour)); return &at }
	granted := func(h int) func(*spec) {
		return func(s *spec) { s.Reattest = &v1alpha1.ReattestGrant{Until: *hours(h)} }
	}
	enrolled := func(end *metav1.Time) func(*spec) {
		return func(s *spec) { s.EKSHA256, s.NotAfter = []string{ek3}, end }
	}
	for name, c := range map[string]struct {
		one, other func(*spec)
		joined     bool
		want       reason.Code // one hour later
	}{
		"grants, one of which ended":      {granted(1), granted(2), true, 0},
		"grants, both of which ended":     {granted(1), granted(1), true, reason.MachineJoined},
		"a grant and none":                {granted(2), func(*spec) {}, true, 0},
		"enrollments, one of which ended": {enrolled(hours(1)), enrolled(nil), false, 0},
		"enrollments without an end":      {enrolled(nil), enrolled(nil), false, 0},
		"enrollments that ended":          {enrolled(hours(1)), enrolled(hours(1)), false, reason.EKNotEnrolled},
	} {
		for _, specs := range [][]func(*spec){{c.one, c.other}, {c.other, c.one}} {
			w := newFixture(t)
			for _, change := range specs {
				w.enroll(t, change)
			}
			if w.rules.Now = modified.Add(time.Hour); c.joined {
				w.m.NodeRef = "n"
			} else {
				w.id.EK = hash(t, ek3)
			}
			if m, code := w.match(t); code != c.want {
				t.Errorf("%s: %v, %v; expected %v", name, m, code, c.want)
			}
		}
	}
}

type pointers map[string]string

func (p pointers) PointerPool(namespace, secret string) string { return p[namespace+"/"+secret] }

// Status row E8: the pool in the pointer config of the Machine's own user data counts.
func TestPoolOfThePointer(t *testing.T) {
	w := newFixture(t)
	ix, _ := NewIndex(w.in, pointers{"openshift-machine-api/worker-user-data": "gpu"})
	for pool, ok := range map[string]bool{"gpu": true, "worker": true, "infra": true, "master": false} {
		w.rules.Pool = pool
		if _, err := ix.Match(w.id, w.rules); (err == nil) != ok {
			t.Errorf("pool %s: %v", pool, err)
		}
	}
	w.rules.Pool = "gpu"
	if m, err := index(t, w.in).Match(w.id, w.rules); err == nil {
		t.Errorf("without pointers, %s has the pool", m)
	}
	w.m.UserDataSecret = ""
	ix, _ = NewIndex(w.in, pointers{"openshift-machine-api/": "gpu"})
	if m, err := ix.Match(w.id, w.rules); err == nil {
		t.Errorf("without user data, %s has the pool of a pointer", m)
	}
}

// The manifests of the caller stay as they are, also if their slices have room.
func TestNewIndex_DoesNotChangeTheManifests(t *testing.T) {
	w := newFixture(t)
	w.enroll(t, func(s *v1alpha1.MachineAttestationSpec) { s.EKSHA256 = []string{ek3[:2] + ek1[2:]} })
	w.m.Pools = append(make([]string, 0, 8), "infra", "worker")
	w.m.EKSHA256 = append(make([]string, 0, 8), ek2, "ff"+ek1[2:])
	want := fmt.Sprint(w.m.Pools[:4], w.m.EKSHA256[:4])
	NewIndex(w.in, pointers{"openshift-machine-api/worker-user-data": "gpu"})
	if got := fmt.Sprint(w.m.Pools[:4], w.m.EKSHA256[:4]); got != want {
		t.Errorf("%s, before %s", got, want)
	}
}

// Neither the order of the files, nor that of the Machines in them, changes what administrators see.
func TestNewIndex_DoesNotDependOnTheOrder(t *testing.T) {
	w := newFixture(t)
	for i := range 20 {
		w.other(func(m *Machine) {
			m.Name, m.UID, m.EKSHA256 = fmt.Sprintf("demo-worker-%02d", 20-i), fmt.Sprint("uid-", i), []string{ek1, ek2}
			m.source = manifest.Place{File: fmt.Sprintf("%02d.yaml", i%7), Line: i}
		})
	}
	for i, name := range []string{"first", "second"} {
		w.enroll(t, func(*v1alpha1.MachineAttestationSpec) {})
		e := &w.in.Enrollments[i]
		e.Name, e.source = name, manifest.Place{File: "e.yaml", Line: i + 1}
	}
	ix, problems := NewIndex(w.in, nil)
	if !slices.IsSortedFunc(ix.Machines(), func(a, b *Machine) int { return strings.Compare(a.Name, b.Name) }) {
		t.Errorf("Machines %v", ix.Machines())
	}
	slices.Reverse(w.in.Enrollments)
	_, again := NewIndex(w.in, nil)
	if !slices.Equal(problems, again) {
		t.Errorf("problems %v\nother files first: %v", problems, again)
	}
	if !slices.IsSortedFunc(problems, func(a, b manifest.Problem) int {
		return cmp.Or(strings.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), strings.Compare(a.What, b.What))
	}) || len(problems) < 40 {
		t.Errorf("problems %v", problems)
	}
}

// A stand-in that the index ignores as a duplicate still has an EK, which opens nothing.
func TestAttack_T42_TheTPMOfADuplicateStandIn(t *testing.T) {
	other := swap(ek1, ek2)(standInYAML)
	for name, raw := range map[string][]string{
		"the same name": {standInYAML, other},
		"the same UID": {swap("  name: rack-1", "  name: rack-1\n  uid: u")(standInYAML),
			swap("  name: rack-1", "  name: rack-2\n  uid: u")(other)},
	} {
		ix := index(t, parse(t, raw...))
		rules := Rules{Pool: "worker", Now: modified, EKEnrolled: true}
		if m, err := ix.Match(Identity{EK: hash(t, ek2)}, rules); code(err) != reason.MachineNotFound {
			t.Errorf("%s: %v, %v", name, m, err)
		}
		if m, err := ix.Match(Identity{EK: hash(t, ek1)}, rules); err != nil || m.Name != "rack-1" {
			t.Errorf("%s, the first: %v, %v", name, m, err)
		}
	}
}

func TestGranted_IsLimited(t *testing.T) {
	for left, want := range map[time.Duration]bool{-1: false, 0: false, 1: true, 24 * time.Hour: true,
		24*time.Hour + 1: false} {
		m := Machine{Enrollment: &v1alpha1.MachineAttestation{}}
		m.Enrollment.Spec.Reattest = until(left)
		if m.Granted(modified) != want {
			t.Errorf("a grant that ends in %v: %v", left, !want)
		}
	}
}

func TestNodeNames_AreThoseOfANode(t *testing.T) {
	m := Machine{InternalDNS: []string{"", ".", "Worker-0.Example.com.", "worker-0.example.com", "worker-0"}}
	if got := m.NodeNames(); !slices.Equal(got, []string{"worker-0.example.com", "worker-0"}) {
		t.Errorf("%q", got)
	}
}

func TestNormalProviderID(t *testing.T) {
	for id, want := range map[string]string{
		"azure:///subscriptions/A": "azure:///subscriptions/a", "AZURE:///A": "azure:///a",
		"vsphere://42-AB": "vsphere://42-ab", "VSphere://A": "vsphere://a",
		"aws:///zone/i-A": "aws:///zone/i-A", "gce://P/z/N": "gce://P/z/N", "azureA": "azureA", "": "",
	} {
		if got := NormalProviderID(id); got != want {
			t.Errorf("%s: %s, want %s", id, got, want)
		}
	}
}

// Administrators find the cause of a denial in its text.
func TestMatch_NamesTheCause(t *testing.T) {
	for want, change := range map[string]func(*testing.T, *fixture){
		"Machine openshift-machine-api/demo-worker-0 has no pool": func(_ *testing.T, w *fixture) { w.m.Pools = nil },
		"among them openshift-machine-api/demo-worker-0 and openshift-machine-api/demo-worker-1": func(_ *testing.T,
			w *fixture) {
			w.other(func(m *Machine) { m.ProviderID = instance })
		},
		"the enrollment of Machine openshift-machine-api/demo-worker-0 has expired": func(t *testing.T, w *fixture) {
			ended := metav1.NewTime(modified)
			w.enroll(t, func(s *v1alpha1.MachineAttestationSpec) { s.EKSHA256, s.NotAfter = []string{ek3}, &ended })
			w.id = Identity{EK: hash(t, ek3)}
		},
		"the EK is enrolled for Machine openshift-machine-api/demo-worker-9": func(t *testing.T, w *fixture) {
			w.enroll(t, func(s *v1alpha1.MachineAttestationSpec) {
				s.MachineRef.Name, s.EKSHA256 = "demo-worker-9", []string{ek3}
			})
			w.id = Identity{EK: hash(t, ek3)}
		},
		"the EK is enrolled for the Machine of Metal3Machine openshift-machine-api/metal-9": func(t *testing.T, w *fixture) {
			w.enroll(t, func(s *v1alpha1.MachineAttestationSpec) {
				s.MachineRef.Kind, s.MachineRef.Name, s.EKSHA256 = kindMetal3Machine, "metal-9", []string{ek3}
			})
			w.in.Enrollments[0].kind = kindHost
			w.id = Identity{EK: hash(t, ek3)}
		},
		"the EK is enrolled for MachineAttestation default/rack-1": func(t *testing.T, w *fixture) {
			w.in = parse(t, standInYAML, swap(ek1, ek2)(standInYAML))
			w.id = Identity{EK: hash(t, ek2)}
		},
	} {
		w := newFixture(t)
		change(t, w)
		if _, err := index(t, w.in).Match(w.id, w.rules); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, expected %q", err, want)
		}
	}
}

func TestMirrors(t *testing.T) {
	mirror := strings.NewReplacer("gce://project/zone/demo-cp-0", instance,
		`    cluster.x-k8s.io/control-plane: ""`, "    a: b", "Running", "Provisioned", "  nodeRef:\n    name: demo-cp-0\n",
		"", "demo-cp-0", "demo-worker-0").Replace(clusterAPIYAML)
	id := Identity{ProviderIDs: []string{instance}}
	for name, c := range map[string]struct {
		here, mirror func(string) string
		group        string
		want         reason.Code
	}{
		"the Machine API is authoritative":   {group: groupMachineAPI},
		"no authority means the Machine API": {here: remove("  authoritativeAPI: MachineAPI\n"), group: groupMachineAPI},
		"Cluster API is authoritative by spec": {here: swap("authoritativeAPI: MachineAPI", "authoritativeAPI: ClusterAPI"),
			group: groupClusterAPI},
		"Cluster API is authoritative by status": {here: swap("status:", "status:\n  authoritativeAPI: ClusterAPI"),
			group: groupClusterAPI},
		"in the middle of the move": {here: swap("status:", "status:\n  authoritativeAPI: Migrating"),
			want: reason.MachineAmbiguous},
		"the object itself is being deleted, and the mirror is not": {here: swap("  name: demo-worker-0",
			"  deletionTimestamp: 2026-11-21T03:59:00Z\n  name: demo-worker-0"), want: reason.MachineDeleting},
		"the mirror has joined": {mirror: swap("phase: Provisioned", "nodeRef: {name: n}"), want: reason.MachineJoined},
		"the mirror runs":       {mirror: swap("phase: Provisioned", "phase: Running"), want: reason.MachineJoined},
		"the mirror is being deleted": {mirror: swap("  name: demo-worker-0",
			"  deletionTimestamp: 2026-11-21T03:59:00Z\n  name: demo-worker-0"), want: reason.MachineDeleting},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := machineAPIYAML, mirror
			if c.here != nil {
				a = c.here(a)
			}
			if c.mirror != nil {
				b = c.mirror(b)
			}
			in := parse(t, b, a)
			ix := index(t, in)
			m, err := ix.Match(id, Rules{Pool: "worker", Now: modified, MaxAge: time.Hour})
			if c.want != 0 {
				if reason.From(err) == nil || reason.From(err).Code != c.want {
					t.Fatalf("%v, %v; expected %v", m, err, c.want)
				}
				return
			}
			if err != nil || m.group() != c.group || len(ix.Machines()) != 1 {
				t.Fatalf("%+v, %v", m, err)
			}
			if m.Mirror == nil || m.Mirror.group() == m.group() || in.Machines[0].Mirror != nil {
				t.Errorf("its mirror is %+v", m.Mirror)
			}
			for _, other := range in.Machines {
				if found, ok := ix.ByUID(other.UID); !ok || found != m {
					t.Errorf("the UID of the %s object finds %v", other.group(), found)
				}
			}
			if got := ix.ByName("openshift-cluster-api", "demo-worker-0"); len(got) != 1 || got[0] != m {
				t.Errorf("by name: %v", got)
			}
			if _, err := ix.Match(Identity{EK: hash(t, ek1)},
				Rules{Pool: "worker", Now: modified, MaxAge: time.Hour}); err != nil {
				t.Errorf("by the EK on the Machine API's object: %v", err)
			}
		})
	}
}

// Both objects of a machine may have the same name, and an enrollment then means both.
func TestMirrors_OfOneName(t *testing.T) {
	w := newFixture(t)
	w.m.EKSHA256 = nil
	w.other(func(m *Machine) {
		m.APIVersion, m.Name, m.ProviderID = groupClusterAPI+"/v1beta2", w.m.Name, w.m.ProviderID
	})
	w.enroll(t, func(s *v1alpha1.MachineAttestationSpec) { s.EKSHA256 = []string{ek1} })
	ix := index(t, w.in)
	if m, err := ix.Match(w.id, w.rules); err != nil || m.group() != groupMachineAPI {
		t.Errorf("%v, %v", m, err)
	}
	if all := ix.ByName(w.m.Namespace, w.m.Name); len(all) != 1 {
		t.Errorf("by name: %v", all)
	}
}

func swap(old, with string) func(string) string {
	return func(s string) string { return strings.Replace(s, old, with, 1) }
}

func remove(old string) func(string) string { return swap(old, "") }

func TestIndexWarns(t *testing.T) {
	for name, c := range map[string]struct {
		raw  []string
		want string
	}{
		"a Machine in two files": {[]string{machineAPIYAML, machineAPIYAML},
			"demo-worker-0 is in two files; this one is ignored; the other is m.yaml:1; remove one"},
		"a Machine that migrates": {[]string{swap("status:", "status:\n  authoritativeAPI: Migrating")(machineAPIYAML),
			swap("gce://project/zone/demo-cp-0", instance)(clusterAPIYAML)}, "demo-worker-0 is migrating"},
		"a provider ID of two Machines": {[]string{machineAPIYAML, strings.NewReplacer("demo-worker-0", "demo-worker-1",
			"0d5a3b32", "1d5a3b32", ek1+", "+ek2, ek3).Replace(machineAPIYAML)},
			`provider ID "` + instance + `" belongs to both openshift-machine-api/demo-worker-0 and ` +
				"openshift-machine-api/demo-worker-1; keep it"},
		"a host whose Machine does not exist": {[]string{hostYAML}, "0 Machines have the Metal3Machine ns/metal-1"},
		"a copied UID": {[]string{machineAPIYAML,
			strings.Replace(machineAPIYAML, "demo-worker-0", "demo-worker-1", 1)}, "has the UID of"},
		"an EK of two machines": {[]string{machineAPIYAML, standInYAML}, "EK " + ek1 +
			" is enrolled for both openshift-machine-api/demo-worker-0 and default/rack-1"},
		"no such Machine": {[]string{enrollmentYAML}, "Machine openshift-machine-api/demo-worker-0 does not exist"},
		"two MachineAttestations": {[]string{machineAPIYAML, enrollmentYAML,
			strings.Replace(enrollmentYAML, "host-7", "host-8", 1)}, "already has a MachineAttestation: host-7"},
		"another instance expected": {[]string{machineAPIYAML,
			strings.Replace(enrollmentYAML, "i-0123456789abcdef0", "i-x", 1)}, "expectedProviderID is"},
		"two stand-ins with one name": {[]string{standInYAML, strings.Replace(standInYAML, ek1, ek2, 1)},
			"rack-1 is in two files"},
		"a name that two Machines have": {[]string{machineAPIYAML, strings.Replace(strings.ReplaceAll(clusterAPIYAML,
			"demo-cp-0", "demo-worker-0"), "openshift-cluster-api", "openshift-machine-api", 1), enrollmentYAML},
			"set machineRef.apiVersion"},
	} {
		t.Run(name, func(t *testing.T) {
			_, problems := NewIndex(parse(t, c.raw...), nil)
			if len(problems) == 0 || manifest.Failed(problems) || problems[0].Line == 0 {
				t.Fatalf("problems: %v", problems)
			}
			if !slices.ContainsFunc(problems, func(p manifest.Problem) bool { return strings.Contains(p.Error(), c.want) }) {
				t.Errorf("%v\nexpected %q", problems, c.want)
			}
		})
	}
}

func TestIndexWarns_OnlyOfProblems(t *testing.T) {
	record := swap("host-7", "0d5a3b32-6a5e-4a59-9d2a-51a0d6a2a7aa")(enrollmentYAML)
	for name, raw := range map[string][]string{
		"an enrollment that expects the instance": {machineAPIYAML, enrollmentYAML},
		"one that expects it before it is known": {remove("  providerID: " + instance + "\n")(machineAPIYAML),
			enrollmentYAML},
		"an enrollment, and the record": {machineAPIYAML, enrollmentYAML, record},
		"the record, and an enrollment": {machineAPIYAML, record, enrollmentYAML},
		"a stand-in":                    {standInYAML},
	} {
		if _, problems := NewIndex(parse(t, raw...), nil); len(problems) > 0 {
			t.Errorf("%s: %v", name, problems)
		}
	}
}

func TestIndexWarns_AtMostAHundredTimes(t *testing.T) {
	w := newFixture(t)
	for range 101 {
		w.in.Machines = append(w.in.Machines, w.in.Machines[0])
	}
	_, problems := NewIndex(w.in, nil)
	if len(problems) != 100 {
		t.Errorf("%d problems", len(problems))
	}
	// An object of the API has no line.
	w.in.Machines[0].source = manifest.Place{File: "Machine ns/demo-worker-0"}
	if _, problems = NewIndex(w.in, nil); problems[0].Want != "the other is Machine ns/demo-worker-0; remove one" {
		t.Errorf("%v", problems[0])
	}
}

// many returns n Machines, each with an EK and an instance.
func many(n int) Manifests {
	in := Manifests{Machines: make([]Machine, n)}
	for i := range in.Machines {
		in.Machines[i] = Machine{APIVersion: "machine.openshift.io/v1beta1", Kind: "Machine",
			Namespace: "openshift-machine-api",
			Name:      fmt.Sprintf("worker-%d", i), UID: fmt.Sprintf("uid-%d", i), Created: modified, Pools: []string{"worker"},
			ProviderID: fmt.Sprintf("aws:///eu-central-1a/i-%017x", i), EKSHA256: []string{fmt.Sprintf("%064x", i+1)}}
	}
	return in
}

// The cost of a match does not depend on the number of Machines.
func BenchmarkMatch(b *testing.B) {
	for _, n := range []int{10, 1000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("%d machines", n), func(b *testing.B) {
			ix := index(b, many(n))
			id := Identity{EK: hash(b, fmt.Sprintf("%064x", n/2+1)),
				ProviderIDs: []string{fmt.Sprintf("aws:///eu-central-1a/i-%017x", n/2)}}
			rules := Rules{Pool: "worker", Now: modified, MaxAge: time.Hour, EKEnrolled: true}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := ix.Match(id, rules); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkNewIndex(b *testing.B) {
	for _, n := range []int{1000, 100_000} {
		in := many(n)
		b.Run(fmt.Sprintf("%d machines", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				NewIndex(in, nil)
			}
		})
	}
}
