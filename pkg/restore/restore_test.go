// SPDX-License-Identifier: Apache-2.0

package restore_test

import (
	"reflect"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/pkg/restore"
)

var now = time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)

func TestRepair(t *testing.T) {
	m := &machine.Machine{Namespace: "m", Name: "one", UID: "u"}
	rec := func(change func(s *v1alpha1.MachineAttestationStatus)) *v1alpha1.MachineAttestation {
		r := &v1alpha1.MachineAttestation{}
		r.Status.MachineUID = "u"
		if change != nil {
			change(&r.Status)
		}
		return r
	}
	until := now.Add(time.Hour)
	all := restore.Latch{Quarantined: true, Joined: true, Node: "n", GrantUsed: until, GrantAttestations: 2}
	quarantined := restore.Latch{Quarantined: true}
	if restore.Repair(nil, m, quarantined, now) == nil {
		t.Error("a quarantine without a record is not recorded")
	}
	if got := restore.Repair(rec(nil), m, all, now); got == nil || !got.Status.Quarantined ||
		got.Status.Phase != v1alpha1.PhaseJoined || got.Status.GrantUsed == nil || got.Status.GrantAttestations != 2 ||
		!restore.Unconfirmed(got) {
		t.Errorf("all of it: %+v", got)
	}
	// The Machine is still that of before the restore and is quarantined, but the record has no such object.
	stale := machine.NewRegistry(nil)
	e, err := machine.NewEnrollment(v1alpha1.MachineAttestation{
		ObjectMeta: metav1.ObjectMeta{Namespace: "m", Name: "two", UID: "v"},
		Spec:       v1alpha1.MachineAttestationSpec{Pool: "worker", ExpectedProviderID: "p", Quarantined: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	stale.PutEnrollment(e)
	before, ok := stale.ByUID("v")
	if !ok || !before.Quarantined() {
		t.Fatal(before)
	}
	if got := restore.Repair(rec(nil), before, quarantined, now); got == nil || !restore.Unconfirmed(got) {
		t.Errorf("the condition is missing, so the quarantine would be lifted: %+v", got)
	}
	says := rec(nil)
	says.Spec.Quarantined = true
	if got := restore.Repair(says, before, quarantined, now); got == nil || restore.Unconfirmed(got) {
		t.Errorf("the record's own spec has the quarantine: %+v", got)
	}
	// A process that still had the Machine of before recorded the quarantine on the restored record.
	has := rec(func(s *v1alpha1.MachineAttestationStatus) { s.Quarantined = true })
	got := restore.Repair(has, m, quarantined, now)
	if got == nil || !restore.Unconfirmed(got) {
		t.Fatalf("the condition is missing, so the quarantine would be lifted: %+v", got)
	}
	if got = restore.Repair(got, m, quarantined, now); got != nil {
		t.Errorf("written again: %+v", got)
	}
	has.Spec.Quarantined = true
	if got = restore.Repair(has, m, quarantined, now); got != nil {
		t.Errorf("the record's own spec has the quarantine: %+v", got)
	}
	for name, l := range map[string]restore.Latch{
		"joined":            {Joined: true},
		"a grant":           {GrantUsed: until, GrantAttestations: 2},
		"joined by a grant": {Joined: true, GrantUsed: until, GrantAttestations: 2},
		"all of it":         all,
	} {
		got := restore.Repair(nil, m, l, now)
		if got == nil {
			t.Errorf("no record, %s: not recorded", name)
			continue
		}
		has := restore.Latch{Quarantined: got.Status.Quarantined, Joined: got.Status.Phase == v1alpha1.PhaseJoined}
		if used := got.Status.GrantUsed; used != nil {
			has.GrantUsed, has.GrantAttestations = used.Time, got.Status.GrantAttestations
		}
		if !has.Covers(l) || got.Status.MachineUID != "u" {
			t.Errorf("no record, %s: %+v", name, got.Status)
		}
	}
	if got := restore.Repair(nil, m, restore.Latch{}, now); got != nil {
		t.Errorf("nothing to be recorded: %+v", got)
	}
	for name, r := range map[string]*v1alpha1.MachineAttestation{
		"the same": rec(func(s *v1alpha1.MachineAttestationStatus) {
			s.Quarantined, s.Phase, s.GrantUsed, s.GrantAttestations = true, v1alpha1.PhaseJoined, &metav1.Time{Time: until}, 2
		}),
		"a newer grant was used": rec(func(s *v1alpha1.MachineAttestationStatus) {
			s.Quarantined, s.Phase, s.GrantUsed, s.GrantAttestations = true, v1alpha1.PhaseJoined,
				&metav1.Time{Time: until.Add(time.Minute)}, 1
		}),
	} {
		r.Spec.Quarantined = true
		if got := restore.Repair(r, m, all, now); got != nil {
			t.Errorf("%s: written again: %+v", name, got.Status)
		}
	}
	// The record kept its quarantine, so no condition is due when something else is repaired.
	kept := rec(func(s *v1alpha1.MachineAttestationStatus) { s.Quarantined = true })
	kept.Spec.Quarantined = true
	if got := restore.Repair(kept, m, all, now); got == nil || restore.Unconfirmed(got) || restore.Unconfirmed(kept) {
		t.Errorf("a quarantine that was not lost: %+v", got)
	}
}

func TestRepair_LeavesTheRecordThatWasRead(t *testing.T) {
	m := &machine.Machine{Namespace: "m", Name: "one", UID: "u"}
	for name, l := range map[string]restore.Latch{
		"a quarantine":   {Quarantined: true},
		"a join":         {Joined: true},
		"a grant":        {GrantUsed: now, GrantAttestations: 2},
		"a certificate":  {Certificate: restore.UsedCertificate},
		"several states": {Quarantined: true, Joined: true, GrantUsed: now, Certificate: restore.UsedCertificate},
	} {
		read := &v1alpha1.MachineAttestation{Status: v1alpha1.MachineAttestationStatus{
			MachineUID: "u", Certificate: &v1alpha1.CertificateStatus{Node: "n"},
		}}
		was := read.DeepCopy()
		if got := restore.Repair(read, m, l, now); got == nil {
			t.Errorf("%s: not recorded", name)
		}
		if !reflect.DeepEqual(read, was) {
			t.Errorf("%s: the record that was read is changed: %+v", name, read)
		}
	}
}

func TestUnconfirmed_IsOnlyTheConditionOfARestore(t *testing.T) {
	for name, c := range map[string]struct {
		conditions []metav1.Condition
		want       bool
	}{
		"no condition":      {nil, false},
		"another condition": {[]metav1.Condition{{Type: "Ready", Status: "True", Reason: "EtcdRestored"}}, false},
		"another reason":    {[]metav1.Condition{{Type: "Quarantined", Status: "True", Reason: "SpecSaysSo"}}, false},
		"false":             {[]metav1.Condition{{Type: "Quarantined", Status: "False", Reason: "EtcdRestored"}}, false},
		"true":              {[]metav1.Condition{{Type: "Quarantined", Status: "True", Reason: "EtcdRestored"}}, true},
	} {
		rec := &v1alpha1.MachineAttestation{Status: v1alpha1.MachineAttestationStatus{Conditions: c.conditions}}
		if got := restore.Unconfirmed(rec); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
		if got := restore.Confirmed(rec, now); (got != nil) != c.want {
			t.Errorf("%s: confirmed: %+v", name, got)
		}
	}
}

func TestConfirmed(t *testing.T) {
	m := &machine.Machine{Namespace: "m", Name: "one", UID: "u"}
	held := restore.Repair(nil, m, restore.Latch{Quarantined: true}, now)
	got := restore.Confirmed(held, now)
	if got == nil || restore.Unconfirmed(got) || !got.Status.Quarantined {
		t.Errorf("%+v", got)
	}
	if restore.Confirmed(got, now) != nil || restore.Confirmed(nil, now) != nil {
		t.Error("written again")
	}
}

// The backup may be from before the approval of the certificate. Then only its Node showed that it was approved.
func TestAttack_T58_ARestoredCertificateThatWasUsedIsNotReplaced(t *testing.T) {
	m := &machine.Machine{Namespace: "m", Name: "one", UID: "u"}
	const own = "JTI=own"
	unused := &v1alpha1.MachineAttestation{Status: v1alpha1.MachineAttestationStatus{
		Phase: v1alpha1.PhaseJoined, Certificate: &v1alpha1.CertificateStatus{Node: "n", PublicKeySHA256: "k1"},
		Credentials: []v1alpha1.CredentialStatus{{ID: own, Expiry: metav1.NewTime(now.Add(time.Hour))}},
	}}
	was := restore.Latch{Joined: true, Certificate: restore.UsedCertificate}
	is := restore.Latch{Joined: true, Certificate: restore.UnusedCertificate}
	if is.Covers(was) || !was.Covers(is) || (restore.Latch{}).Covers(was) {
		t.Error("what the record must have again is wrong")
	}
	if other := (restore.Latch{Joined: true}); !other.Covers(was) {
		t.Error("a record without a certificate can lose no use of it")
	}
	got := restore.Repair(unused, m, was, now)
	if got == nil || !got.Status.Certificate.Used {
		t.Fatalf("got %+v", got)
	}
	thief := v1alpha1.CertificateStatus{Node: "n", PublicKeySHA256: "k2", CredentialID: own}
	if next, err := record.Reapprove(unused, "k1", thief, now); err != nil || next == nil {
		t.Fatalf("without a Node it must be possible: %v", err)
	}
	if next, err := record.Reapprove(got, "k1", thief, now); err == nil || reason.From(err).Code != reason.CSRKeyChanged {
		t.Errorf("%+v, %v", next, err)
	}
	if got := restore.Repair(unused, m, is, now); got != nil {
		t.Errorf("it was not used before either: %+v", got.Status)
	}
	if got := restore.Repair(nil, m, restore.Latch{Certificate: restore.UsedCertificate}, now); got != nil {
		t.Errorf("without a record: %+v", got.Status)
	}
	without := &v1alpha1.MachineAttestation{Status: v1alpha1.MachineAttestationStatus{Phase: v1alpha1.PhaseJoined}}
	if got := restore.Repair(without, m, was, now); got != nil {
		t.Errorf("without a certificate: %+v", got.Status)
	}
}

func TestLatch_StricterCombinesBoth(t *testing.T) {
	all := restore.Latch{Quarantined: true, Joined: true, Node: "n", GrantUsed: now, GrantAttestations: 2,
		Certificate: restore.UsedCertificate}
	for _, other := range []restore.Latch{
		{}, {GrantUsed: now.Add(-time.Minute), GrantAttestations: 3}, {GrantUsed: now, GrantAttestations: 1}, all,
	} {
		for _, got := range []restore.Latch{all.Stricter(other), other.Stricter(all)} {
			if got != all || !got.Covers(other) || !got.Covers(all) {
				t.Errorf("with %+v: %+v", other, got)
			}
		}
	}
}

func TestLatch_HasEachStateThatABackupCanRevoke(t *testing.T) {
	for name, c := range map[string]struct {
		l     restore.Latch
		empty bool
	}{
		"no state":              {restore.Latch{}, true},
		"a node":                {restore.Latch{Node: "n"}, true},
		"an unused certificate": {restore.Latch{Certificate: restore.UnusedCertificate}, true},
		"a used certificate":    {restore.Latch{Certificate: restore.UsedCertificate}, false},
		"a quarantine":          {restore.Latch{Quarantined: true}, false},
		"a join":                {restore.Latch{Joined: true}, false},
		"a grant":               {restore.Latch{GrantUsed: now}, false},
	} {
		if got := c.l.Empty(); got != c.empty {
			t.Errorf("%s: empty is %v", name, got)
		}
		if !c.l.Covers(c.l) || !c.l.Covers(restore.Latch{}) {
			t.Errorf("%s: does not cover itself or no state", name)
		}
		// Without a certificate, a record can lose no use of it.
		if got := (restore.Latch{}).Covers(c.l); got != (c.empty || c.l.Certificate == restore.UsedCertificate) {
			t.Errorf("%s: no state covers it: %v", name, got)
		}
	}
}

func TestMachine_IsAsStrictAsBefore(t *testing.T) {
	type list = []string
	for name, c := range map[string]struct {
		before  restore.Known
		now     machine.Machine
		eks     list
		pools   list
		deleted bool
	}{
		"the same": {restore.Known{EKSHA256: list{"a"}, Pools: list{"w"}},
			machine.Machine{EKSHA256: list{"a"}, Pools: list{"w"}}, list{"a"}, list{"w"}, false},
		"an EK came back": {restore.Known{EKSHA256: list{"a"}}, machine.Machine{EKSHA256: list{"a", "b"}}, list{"a"},
			nil, false},
		"an EK was replaced": {restore.Known{EKSHA256: list{"a"}}, machine.Machine{EKSHA256: list{"b"}}, list{"a"},
			nil, false},
		"no EK was required": {restore.Known{}, machine.Machine{EKSHA256: list{"b"}}, nil, nil, false},
		"an EK is removed now": {restore.Known{EKSHA256: list{"a", "b"}}, machine.Machine{EKSHA256: list{"b"}}, list{"b"},
			nil, false},
		"a restriction is lost": {restore.Known{EKSHA256: list{"a"}}, machine.Machine{}, list{"a"}, nil, false},
		"another pool": {restore.Known{Pools: list{"infra"}}, machine.Machine{Pools: list{"master"}}, nil,
			list{"infra"}, false},
		"it was being deleted":    {restore.Known{Deleting: true}, machine.Machine{}, nil, nil, true},
		"it is being deleted now": {restore.Known{}, machine.Machine{Deleting: true}, nil, nil, true},
	} {
		got := restore.Machine(c.before, c.now)
		if !slices.Equal(got.EKSHA256, c.eks) || !slices.Equal(got.Pools, c.pools) || got.Deleting != c.deleted {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestEnrollment_IsAsStrictAsBefore(t *testing.T) {
	early, late := &metav1.Time{Time: now}, &metav1.Time{Time: now.Add(time.Hour)}
	base := func() v1alpha1.MachineAttestationSpec {
		return v1alpha1.MachineAttestationSpec{
			MachineRef: &v1alpha1.MachineReference{Name: "one"}, EKSHA256: []string{"a"}, NotAfter: early,
			Reattest: &v1alpha1.ReattestGrant{Until: *early},
		}
	}
	for name, c := range map[string]struct {
		before, now, want func(*v1alpha1.MachineAttestationSpec)
	}{
		"the same": {},
		"another grant": {now: func(s *v1alpha1.MachineAttestationSpec) { s.Reattest.Until = *late },
			want: func(s *v1alpha1.MachineAttestationSpec) { s.Reattest = nil }},
		"a grant": {before: func(s *v1alpha1.MachineAttestationSpec) { s.Reattest = nil },
			want: func(s *v1alpha1.MachineAttestationSpec) { s.Reattest = nil }},
		"the grant was removed": {now: func(s *v1alpha1.MachineAttestationSpec) { s.Reattest = nil },
			want: func(s *v1alpha1.MachineAttestationSpec) { s.Reattest = nil }},
		"a later end":           {now: func(s *v1alpha1.MachineAttestationSpec) { s.NotAfter = late }},
		"no end":                {now: func(s *v1alpha1.MachineAttestationSpec) { s.NotAfter = nil }},
		"an earlier end":        {before: func(s *v1alpha1.MachineAttestationSpec) { s.NotAfter = late }},
		"an end where none was": {before: func(s *v1alpha1.MachineAttestationSpec) { s.NotAfter = nil }},
		"never an end": {
			before: func(s *v1alpha1.MachineAttestationSpec) { s.NotAfter = nil },
			now:    func(s *v1alpha1.MachineAttestationSpec) { s.NotAfter = nil },
			want:   func(s *v1alpha1.MachineAttestationSpec) { s.NotAfter = nil },
		},
		"an EK is removed now": {
			before: func(s *v1alpha1.MachineAttestationSpec) { s.EKSHA256 = []string{"b", "a"} },
		},
		"a rehearsal now": {
			now:  func(s *v1alpha1.MachineAttestationSpec) { s.Rehearsal = &v1alpha1.RehearsalTicket{} },
			want: func(s *v1alpha1.MachineAttestationSpec) { s.Rehearsal = &v1alpha1.RehearsalTicket{} },
		},
		"a rehearsal before": {
			before: func(s *v1alpha1.MachineAttestationSpec) { s.Rehearsal = &v1alpha1.RehearsalTicket{} },
		},
		"another EK":  {now: func(s *v1alpha1.MachineAttestationSpec) { s.EKSHA256 = []string{"b"} }},
		"one more EK": {now: func(s *v1alpha1.MachineAttestationSpec) { s.EKSHA256 = []string{"b", "a"} }},
		"another Machine": {now: func(s *v1alpha1.MachineAttestationSpec) {
			s.MachineRef = &v1alpha1.MachineReference{Name: "two"}
		}},
		"another instance": {
			before: func(s *v1alpha1.MachineAttestationSpec) { s.ExpectedProviderID = "p" },
			now:    func(s *v1alpha1.MachineAttestationSpec) { s.ExpectedProviderID = "q" },
			want:   func(s *v1alpha1.MachineAttestationSpec) { s.ExpectedProviderID = "p" },
		},
		"quarantined now": {
			now:  func(s *v1alpha1.MachineAttestationSpec) { s.Quarantined = true },
			want: func(s *v1alpha1.MachineAttestationSpec) { s.Quarantined = true },
		},
	} {
		before, present, want := base(), base(), base()
		for _, x := range []struct {
			change func(*v1alpha1.MachineAttestationSpec)
			of     *v1alpha1.MachineAttestationSpec
		}{{c.before, &before}, {c.now, &present}, {c.want, &want}} {
			if x.change != nil {
				x.change(x.of)
			}
		}
		got := restore.Enrollment(before, present)
		if !slices.Equal(got.EKSHA256, want.EKSHA256) || got.ExpectedProviderID != want.ExpectedProviderID ||
			got.MachineRef.Name != want.MachineRef.Name || got.Quarantined != want.Quarantined ||
			(got.Rehearsal == nil) != (want.Rehearsal == nil) ||
			!got.NotAfter.Equal(want.NotAfter) || !restore.SameGrant(got, want) {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}

func TestUnknown_KeepsOnlyTheQuarantine(t *testing.T) {
	full := v1alpha1.MachineAttestationSpec{
		MachineRef: &v1alpha1.MachineReference{Name: "one"}, EKSHA256: []string{"a"}, Quarantined: true,
		ExpectedProviderID: "p", Reattest: &v1alpha1.ReattestGrant{},
	}
	got, more := restore.Unknown(full)
	if !more || got.MachineRef == nil || !got.Quarantined || len(got.EKSHA256) > 0 || got.ExpectedProviderID != "" ||
		got.Reattest != nil {
		t.Errorf("%v, %+v", more, got)
	}
	if _, more := restore.Unknown(v1alpha1.MachineAttestationSpec{MachineRef: full.MachineRef}); more {
		t.Error("the record of a Machine enrolls nothing")
	}
	if _, more := restore.Unknown(v1alpha1.MachineAttestationSpec{Pool: "worker"}); !more {
		t.Error("a stand-in is a Machine")
	}
	for name, part := range map[string]v1alpha1.MachineAttestationSpec{
		"one EK":      {EKSHA256: []string{"a"}},
		"an instance": {ExpectedProviderID: "p"},
		"a grant":     {Reattest: &v1alpha1.ReattestGrant{}},
	} {
		part.MachineRef = full.MachineRef
		if _, more := restore.Unknown(part); !more {
			t.Errorf("%s is only a quarantine", name)
		}
	}
}

func TestToken_OfABackup(t *testing.T) {
	const (
		tokenA = "AAAA-bbb_CCCC-ddd_EEEE-fff_GGGG-hhh_IIII-jjj"
		tokenB = "1111-bbb_2222-ddd_3333-fff_4444-hhh_5555-jjj"
		tokenC = "6666-bbb_7777-ddd_8888-fff_9999-hhh_0000-jjj"
	)
	type data = map[string][]byte
	in := func(d time.Duration) []byte { return []byte(now.Add(d).Format(time.RFC3339)) }
	a, b, c := data{"token": []byte(tokenA)}, data{"token": []byte(tokenB)}, data{"token": []byte(tokenC)}
	two := func(current, previous string, end time.Duration) data {
		return data{"token": []byte(current), "previous-token": []byte(previous), "previous-expires": in(end)}
	}
	grace := two(tokenB, tokenA, time.Hour)
	for name, test := range map[string]struct {
		before data
		read   []data // in sequence
		ok     bool   // the last one is accepted
		known  bool   // it is compared with the state from before
	}{
		"the same":                                        {b, []data{b}, true, true},
		"the same, read again":                            {b, []data{b, b}, true, true},
		"never one":                                       {nil, []data{nil}, true, true},
		"the previous one, in its grace":                  {grace, []data{a}, false, false},
		"both, for as long":                               {grace, []data{grace}, true, true},
		"both, for less long":                             {grace, []data{two(tokenB, tokenA, time.Minute)}, true, true},
		"both, for longer":                                {grace, []data{two(tokenB, tokenA, 61*time.Minute)}, false, false},
		"both, from before the rotation":                  {grace, []data{two(tokenA, tokenB, 2*time.Hour)}, false, false},
		"the former one again, after the previous one":    {grace, []data{a, grace}, true, true},
		"the previous one, after its grace":               {two(tokenB, tokenA, 0), []data{a}, false, false},
		"voided":                                          {b, []data{a}, false, false},
		"voided, and read again":                          {b, []data{a, a}, false, false},
		"deleted since":                                   {nil, []data{a}, false, false},
		"from before there was one":                       {b, []data{nil}, false, false},
		"the Secret is deleted":                           {b, []data{a, nil}, false, false},
		"the Secret that is missing, again":               {b, []data{nil, nil}, false, false},
		"another one":                                     {b, []data{a, c}, true, false},
		"another one after none":                          {b, []data{nil, c}, true, false},
		"the former one again":                            {b, []data{a, b}, true, true},
		"deleted again, as before":                        {nil, []data{a, nil}, false, true},
		"another one, with the voided one":                {b, []data{a, two(tokenC, tokenA, time.Hour)}, false, false},
		"another one, with the voided one that has ended": {b, []data{a, two(tokenC, tokenA, 0)}, true, false},
		"another one, with the voided previous one":       {nil, []data{grace, two(tokenC, tokenA, time.Hour)}, false, false},
		"the voided previous one":                         {nil, []data{grace, a}, false, false},
		"malformed":                                       {b, []data{{"token": []byte("x")}}, false, false},
		"malformed, after a voided one":                   {b, []data{a, {"token": []byte("x")}}, false, false},
	} {
		view := provisioning.View{}.Gone(now)
		if test.before != nil {
			view, _ = provisioning.View{}.Read(now, test.before, time.Hour)
		}
		token := &restore.Token{Before: view}
		got, known := false, provisioning.View{}
		for _, d := range test.read {
			known, got = token.Accept(now, d)
		}
		want := provisioning.View{}
		if test.known {
			want = view
		}
		if got != test.ok || !reflect.DeepEqual(known, want) {
			t.Errorf("%s: accepted %v, compared with %+v", name, got, known)
		}
	}
}
