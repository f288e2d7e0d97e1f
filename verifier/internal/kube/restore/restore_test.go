// SPDX-License-Identifier: Apache-2.0

package restore_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/policy"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	rule "github.com/mcs-attest/mcs-attest/pkg/restore"
	"github.com/mcs-attest/mcs-attest/verifier/internal/keys"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/restore"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
	"github.com/mcs-attest/mcs-attest/verifier/internal/view"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// process is a process with a guard, whose inventory and API are fields.
type process struct {
	*restore.Guard
	now    time.Time
	memory restore.Memory
	voided int
	reread int
	// void and reset, if set, are called while a restore is noticed.
	void, reset func()
}

func newProcess() *process {
	p := &process{now: noon}
	p.Guard = restore.New(restore.Options{
		Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return p.now }, Probe: time.Hour,
		TokenInUse: func() bool { return false }, ProvisioningSecret: "ns/token",
		Remember: func() restore.Memory { return p.memory },
		Void: func() {
			p.voided++
			if p.void != nil {
				p.void()
			}
		},
		Reset: func() {
			if p.reset != nil {
				p.reset()
			}
		},
		Reread: func() { p.reread++ },
	})
	return p
}

func (p *process) acknowledge(at time.Time) {
	p.Acknowledge(map[string]string{restore.AnnotationRestoreSeen: at.Format(time.RFC3339)})
}

// reconciler repairs records that are kept in a map.
func (p *process) reconciler(records map[string]*v1alpha1.MachineAttestation) *restore.Reconciler {
	return &restore.Reconciler{
		Guard: p.Guard, Ready: func(bool) bool { return true }, Changed: func() {},
		Limit: flowcontrol.NewFakeAlwaysRateLimiter(), Machine: func(uid string) (*machine.Machine, string) {
			return &machine.Machine{Namespace: "m", Name: uid, UID: uid}, uid
		},
		Latch: func(string) rule.Latch { return rule.Latch{} },
		Update: func(_ context.Context, uid string, change store.Change) error {
			next, err := change(records[uid])
			if next != nil {
				records[uid] = next
			}
			return err
		},
		RenewKeys: func(context.Context) error { return nil },
	}
}

// A second restore, or the same one noticed again, before all was repaired.
func TestRepairsOfARestoreSurviveTheNext(t *testing.T) {
	p := newProcess()
	strong := rule.Latch{Quarantined: true, Joined: true, GrantUsed: noon, GrantAttestations: 3}
	p.memory.Latches = map[string]rule.Latch{"u": strong, "v": {Joined: true}}
	p.Observe(0, 50)
	p.Restored(0, "test")
	p.Restored(0, "the same one, by another watch")
	if p.Epoch() != 1 || len(p.Problems()) != 1 || p.voided != 1 || p.reread != 1 {
		t.Errorf("one restore counts %d times, epoch %d", len(p.Problems()), p.Epoch())
	}
	// What the backup has, read since.
	first := p.memory.Latches
	p.memory.Latches = map[string]rule.Latch{"u": {GrantUsed: noon.Add(-time.Hour), GrantAttestations: 1},
		"v": {Quarantined: true}}
	p.Restored(1, "another")
	if len(p.Problems()) != 2 {
		t.Errorf("%q", p.Problems())
	}
	records := map[string]*v1alpha1.MachineAttestation{}
	if _, err := p.reconciler(records).Reconcile(t.Context(), reconcile.Request{}); err != nil {
		t.Fatal(err)
	}
	for _, uid := range []string{"u", "v"} {
		if s := records[uid].Status; !s.Quarantined || s.Phase != v1alpha1.PhaseJoined {
			t.Errorf("%s: %+v", uid, s)
		}
	}
	if s := records["u"].Status; !s.GrantUsed.Time.Equal(noon) || s.GrantAttestations != 3 {
		t.Errorf("%+v", s)
	}
	if p.Repairing() || first["v"].Quarantined {
		t.Error("not repaired, or a map that was in use was changed")
	}
}

// T58: a second restore may undo what the repair has written. So no keys are renewed before all is repaired again.
func TestAttack_T58_NoKeysWhileASecondRestoreShows(t *testing.T) {
	p := newProcess()
	p.memory.Latches = map[string]rule.Latch{"u": {Joined: true}, "v": {Joined: true}}
	p.Restored(0, "test")
	r := p.reconciler(map[string]*v1alpha1.MachineAttestation{})
	update, renewed, writes := r.Update, 0, 0
	r.RenewKeys = func(context.Context) error { renewed++; return nil }
	r.Update = func(ctx context.Context, uid string, change store.Change) error {
		if writes++; writes == 2 {
			return reason.Wrap(reason.StoreUnavailable, store.ErrRestored, "write")
		}
		return update(ctx, uid, change)
	}
	if _, err := r.Reconcile(t.Context(), reconcile.Request{}); !errors.Is(err, store.ErrRestored) || renewed != 0 {
		t.Errorf("%v, and keys were renewed %d times", err, renewed)
	}
	if _, err := r.Reconcile(t.Context(), reconcile.Request{}); err != nil || renewed != 1 || p.Repairing() {
		t.Errorf("then: %v, and keys were renewed %d times", err, renewed)
	}
}

func TestGuard_AcceptsOnlyWhatTheMemoryHas(t *testing.T) {
	p := newProcess()
	enrollment := func(uid, ek string, created time.Time, change func(*v1alpha1.MachineAttestation)) machine.Enrollment {
		t.Helper()
		a := v1alpha1.MachineAttestation{
			ObjectMeta: metav1.ObjectMeta{Namespace: "m", Name: uid, UID: types.UID(uid),
				CreationTimestamp: metav1.NewTime(created)},
			Spec: v1alpha1.MachineAttestationSpec{MachineRef: &v1alpha1.MachineReference{Name: "one"}},
		}
		if ek != "" {
			a.Spec.EKSHA256 = []string{ek}
		}
		if change != nil {
			change(&a)
		}
		e, err := machine.NewEnrollment(a)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	ek := "00000000000000000000000000000000000000000000000000000000000000aa"
	other := "00000000000000000000000000000000000000000000000000000000000000bb"
	old, fresh := noon.Add(-time.Hour), noon.Add(time.Second)
	known := enrollment("known", ek, old, nil)
	p.memory = restore.Memory{
		View:        &view.View{Policies: &policy.Set{}},
		Machines:    map[string]rule.Known{"known": {}},
		Enrollments: map[string]v1alpha1.MachineAttestationSpec{"known": known.Spec},
	}
	if _, ok := p.Machine(machine.Machine{UID: "back", Created: old}); !ok {
		t.Error("nothing is held before a restore")
	}
	p.now = noon.Add(time.Millisecond)
	p.Restored(0, "test")

	for name, test := range map[string]struct {
		machine machine.Machine
		want    bool
	}{
		"known":                               {machine.Machine{UID: "known", Created: old}, true},
		"removed since the backup":            {machine.Machine{UID: "back", Created: old}, false},
		"without a time of creation":          {machine.Machine{UID: "undated"}, false},
		"created after the restore":           {machine.Machine{UID: "new", Created: fresh}, true},
		"created in the second of the notice": {machine.Machine{UID: "new2", Created: noon}, true},
	} {
		if _, ok := p.Machine(test.machine); ok != test.want {
			t.Errorf("Machine %s: accepted %v", name, ok)
		}
	}
	got, ok := p.Enrollment(enrollment("known", other, old, nil))
	if !ok || len(got.Spec.EKSHA256) != 1 || got.Spec.EKSHA256[0] != ek {
		t.Errorf("an EK came back: %v %+v", ok, got.Spec)
	}
	got, ok = p.Enrollment(enrollment("back", ek, old, func(a *v1alpha1.MachineAttestation) { a.Spec.Quarantined = true }))
	if !ok || len(got.Spec.EKSHA256) > 0 || !got.Spec.Quarantined {
		t.Errorf("an enrollment came back: %v %+v", ok, got.Spec)
	}
	standIn := func(a *v1alpha1.MachineAttestation) { a.Spec.MachineRef, a.Spec.Pool = nil, "worker" }
	if _, ok = p.Enrollment(enrollment("back", ek, old, standIn)); ok {
		t.Error("a stand-in came back")
	}
	granted := func(a *v1alpha1.MachineAttestation) {
		a.Spec.Reattest = &v1alpha1.ReattestGrant{Until: metav1.NewTime(fresh)}
	}
	made := enrollment("new", ek, fresh, granted)
	if got, ok = p.Enrollment(made); !ok || len(got.Spec.EKSHA256) != 1 || got.Spec.Reattest != nil ||
		!p.WithheldGrant(&made.MachineAttestation) {
		t.Errorf("an enrollment of after the restore: %v %+v", ok, got.Spec)
	}
	v := &view.View{}
	if !p.View(v) || v.Policies != p.memory.View.Policies || !p.HoldsPolicies() {
		t.Error("the policies are not held")
	}

	p.acknowledge(noon.Add(-time.Second))
	if !p.Unacknowledged() {
		t.Error("an earlier acknowledgement counts")
	}
	p.acknowledge(noon.Add(time.Second))
	if p.Unacknowledged() || p.View(v) || len(p.Problems()) > 0 || p.reread != 2 ||
		p.WithheldGrant(&made.MachineAttestation) {
		t.Error("it is still held")
	}
	if _, ok := p.Machine(machine.Machine{UID: "back", Created: old}); !ok {
		t.Error("acknowledged, and not accepted")
	}
}

// A process that had not read the Machines has nothing to compare with. Grants wait in any case.
func TestGuard_WithoutMachines(t *testing.T) {
	p := newProcess()
	p.Restored(0, "test")
	if _, ok := p.Machine(machine.Machine{UID: "one"}); !ok {
		t.Error("a Machine is not accepted")
	}
	a := &v1alpha1.MachineAttestation{Spec: v1alpha1.MachineAttestationSpec{Reattest: &v1alpha1.ReattestGrant{}}}
	if !p.WithheldGrant(a) {
		t.Error("a grant counts")
	}
}

// A process that was cut off notices a restore late. It accepts the keys that another one has made in the meantime.
func TestGuard_LateNoticeAcceptsTheNewKeys(t *testing.T) {
	made := func(at time.Time) keys.Pair {
		t.Helper()
		pair, err := keys.Pair{}.Rotate(at, 0)
		if err != nil {
			t.Fatal(err)
		}
		return pair
	}
	p := newProcess()
	inUse, early := made(noon.Add(-time.Minute)), made(noon.Add(59*time.Minute))
	p.memory.Keys = slices.Concat(inUse.IDs(), early.IDs())
	p.Observe(0, 10)
	p.now = noon.Add(time.Hour)
	p.Restored(0, "test")
	for name, test := range map[string]struct {
		pair keys.Pair
		want bool
	}{
		"of the backup, never seen":  {made(noon.Add(-time.Hour)), true},
		"in use until the restore":   {inUse, true},
		"made by another process":    {made(noon.Add(time.Minute)), false},
		"made by a slow clock":       {made(noon.Add(-2*keys.ClockSkew + time.Second)), false},
		"rotated by another process": {made(noon.Add(30 * time.Minute)), false},
		"read before the notice":     {early, true},
	} {
		if p.Voided(test.pair) != test.want {
			t.Errorf("%s: void %v", name, !test.want)
		}
	}
	p.acknowledge(p.now)
	if p.Voided(early) {
		t.Error("acknowledged, and a front does not accept the keys that another process made")
	}
	if !p.Voided(made(noon.Add(-time.Hour))) {
		t.Error("acknowledged, and the keys of the backup are accepted")
	}
}

// The machine-api-controller creates Machines as soon as the API returns. A process that was cut off detects the
// restore later, perhaps after an administrator has acknowledged it.
func TestGuard_LateNoticeAcceptsWhatIsNewerThanTheBackup(t *testing.T) {
	const outage = 15 * time.Minute
	for name, test := range map[string]struct {
		created time.Time
		want    bool
	}{
		"in the backup":                                {noon.Add(-time.Second), false},
		"younger than clocks are apart":                {noon.Add(keys.ClockSkew - time.Second), false},
		"created while the process was cut off":        {noon.Add(keys.ClockSkew), true},
		"created immediately before the late notice":   {noon.Add(outage - time.Second), true},
		"without a time of creation":                   {time.Time{}, false},
		"created after the notice, as for every other": {noon.Add(outage), true},
	} {
		if _, ok := cutOff(outage).Machine(machine.Machine{UID: "u", Created: test.created}); ok != test.want {
			t.Errorf("Machine %s: accepted %v", name, ok)
		}
	}
	for at, want := range map[time.Duration]bool{
		-time.Second: false, keys.ClockSkew - time.Second: false, keys.ClockSkew: true, 10 * time.Minute: true,
	} {
		p := cutOff(outage)
		p.acknowledge(noon.Add(at))
		if p.Unacknowledged() == want {
			t.Errorf("acknowledged %s after the inventory was last current: counts %v", at, !want)
		}
	}
	// The restore was detected immediately: the clocks may differ by more than the outage.
	p := newProcess()
	p.memory.Machines = map[string]rule.Known{}
	p.Observe(0, 10)
	p.now = noon.Add(10 * time.Second)
	p.Restored(0, "test")
	if _, ok := p.Machine(machine.Machine{UID: "u", Created: noon.Add(9 * time.Second)}); ok {
		t.Error("a Machine that may be older than the backup is accepted")
	}
}

// cutOff returns a process that was cut off from the API at noon, and detects a restore at the end of the outage.
func cutOff(outage time.Duration) *process {
	p := newProcess()
	p.memory.Machines, p.memory.Enrollments = map[string]rule.Known{}, map[string]v1alpha1.MachineAttestationSpec{}
	p.Observe(0, 10)
	p.now = noon.Add(outage)
	p.Restored(0, "test")
	return p
}

// During a long outage etcd may be restored twice, and the second backup may be younger than the first restore. The
// process detects only one restore. A Machine that was created between the two may have been removed after the backup.
func TestGuard_ALongOutageMayHideSeveralRestores(t *testing.T) {
	const outage = time.Hour
	for name, test := range map[string]struct {
		created time.Duration
		want    bool
	}{
		"created after the first restore":            {20 * time.Minute, false},
		"created immediately before the late notice": {outage - time.Second, false},
		"created after the notice":                   {outage, true},
	} {
		if _, ok := cutOff(outage).Machine(machine.Machine{UID: "u", Created: noon.Add(test.created)}); ok != test.want {
			t.Errorf("Machine %s: accepted %v", name, ok)
		}
	}
	p := cutOff(outage)
	p.acknowledge(noon.Add(15 * time.Minute))
	if !p.Unacknowledged() {
		t.Error("the acknowledgement of the first restore releases the memory")
	}
	p.acknowledge(noon.Add(outage))
	if p.Unacknowledged() {
		t.Error("an acknowledgement after the notice does not count")
	}
}

func TestReconciler_KeepsWhatItMayNotWrite(t *testing.T) {
	p := newProcess()
	p.memory.Latches = map[string]rule.Latch{"u": {Joined: true}, "v": {Joined: true}}
	p.Restored(0, "test")
	r, records, renewed := p.reconciler(nil), map[string]*v1alpha1.MachineAttestation{}, 0
	write := p.reconciler(records).Update
	forbidden := kerrors.NewForbidden(schema.GroupResource{}, "", errors.New("no"))
	r.RenewKeys = func(context.Context) error { renewed++; return nil }
	r.Update = func(ctx context.Context, uid string, change store.Change) error {
		if uid == "u" {
			return forbidden
		}
		return write(ctx, uid, change)
	}
	if _, err := r.Reconcile(t.Context(), reconcile.Request{}); !kerrors.IsForbidden(err) || !p.Repairing() ||
		records["v"] == nil || renewed != 1 {
		t.Errorf("%v, %d records, keys renewed %d times", err, len(records), renewed)
	}
	r.Update = write
	if _, err := r.Reconcile(t.Context(), reconcile.Request{}); err != nil || p.Repairing() || records["u"] == nil {
		t.Errorf("%v, %d records", err, len(records))
	}
	broken := errors.New("timeout")
	p.Restored(1, "again")
	r.Update = func(context.Context, string, store.Change) error { return broken }
	if _, err := r.Reconcile(t.Context(), reconcile.Request{}); !errors.Is(err, broken) || renewed != 2 || !p.Repairing() {
		t.Errorf("keys came before the records: %v, renewed %d times", err, renewed)
	}
}

// policies is an API with the revision of etcd.
type policies struct {
	client.Reader
	revision string
	calls    int
	err      error
}

func (a *policies) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	a.calls++
	list.SetResourceVersion(a.revision)
	return a.err
}

// badPolicies has a policy that the API server accepts and that cannot be decoded.
type badPolicies struct{ client.Reader }

func (badPolicies) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	return json.Unmarshal([]byte(`{"metadata":{"resourceVersion":"19"},
		"items":[{"metadata":{"name":"p"},"spec":{"maxMachineAge":"1d"}}]}`), list)
}

func TestAttack_T58_APolicyThatCannotBeDecodedHidesNoRestore(t *testing.T) {
	noticed := 0
	d := &restore.Detector{API: badPolicies{}, Now: time.Now, Clock: time.Now,
		Noticed: func(time.Time, time.Time, string) { noticed++ }, Reread: func() {}}
	d.Observe(0, 20)
	if err := d.Probe(t.Context()); !errors.Is(err, store.ErrRestored) || noticed != 1 || d.Silent() {
		t.Errorf("error %v, %d restores", err, noticed)
	}
}

func TestDetector_ProbeReportsADeniedRead(t *testing.T) {
	denied := kerrors.NewForbidden(schema.GroupResource{Resource: "attestationpolicies"}, "", errors.New("no"))
	d := &restore.Detector{API: &policies{err: denied}, Now: time.Now, Clock: time.Now}
	if err := d.Probe(t.Context()); !errors.Is(err, denied) || !d.Silent() {
		t.Errorf("error %v", err)
	}
}

func TestDetector_Probe(t *testing.T) {
	api, noticed, now := &policies{revision: "20"}, 0, noon
	d := &restore.Detector{
		API: api, Now: func() time.Time { return now }, Clock: func() time.Time { return now },
		Noticed: func(time.Time, time.Time, string) { noticed++ }, Reread: func() {},
	}
	if !d.Silent() {
		t.Error("it was not asked yet")
	}
	probe := func(revision string, want int) {
		t.Helper()
		now, api.revision = now.Add(time.Minute), revision
		before := noticed
		if err := d.Probe(t.Context()); (err != nil) != (noticed > before) {
			t.Error(err)
		}
		if noticed != want || d.Silent() {
			t.Errorf("at revision %s: %d restores", revision, noticed)
		}
	}
	probe("20", 0)
	probe("20", 0)
	probe("25", 0)
	probe("19", 1)
	d.Observe(0, 100) // by a watch of before the restore
	probe("19", 1)
	probe("", 1) // an API that counts in something else
	calls := api.calls
	if err := d.Probe(t.Context()); err != nil || api.calls != calls {
		t.Error("two concurrent probes are two calls")
	}
	if now = now.Add(restore.SilentAfter + time.Second); !d.Silent() {
		t.Error("the API is not silent")
	}
}

func TestDetector_Expect(t *testing.T) {
	noticed := 0
	d := &restore.Detector{Now: time.Now, Clock: time.Now, Noticed: func(time.Time, time.Time, string) { noticed++ },
		Reread: func() {}}
	d.Observe(0, 20)
	slow, late := d.Expect(0), d.Expect(0) // two calls that end after the restore was noticed
	for _, c := range []struct {
		revision uint64
		restores int
	}{{21, 0}, {21, 0}, {0, 0}, {20, 1}, {5, 1}, {0, 1}, {4, 2}, {6, 2}} {
		before := noticed
		err := d.Expect(d.Epoch())(c.revision)
		if errors.Is(err, store.ErrRestored) != (noticed > before) || noticed != c.restores {
			t.Errorf("a write at revision %d: %v, %d restores", c.revision, err, noticed)
		}
	}
	if err := slow(19); !errors.Is(err, store.ErrRestored) || noticed != 2 {
		t.Errorf("a write that began before the restore: %v, %d restores", err, noticed)
	}
	if err := late(30); !errors.Is(err, store.ErrRestored) || d.Highest(d.Epoch()) != 6 {
		t.Errorf("an answer to what began before the restore: %v, and the highest revision is %d", err, d.Highest(d.Epoch()))
	}
}

// A restore with --bump-revision. No etcd writes that fast.
func TestAttack_T58_AJumpOfTheRevisionShowsARestore(t *testing.T) {
	for name, test := range map[string]struct {
		before, after uint64
		elapsed       time.Duration
		want          bool
	}{
		"writes while suspended":   {1_000, 100_001_000, 0, false},
		"more than that":           {1_000, 100_001_001, 0, true},
		"writes of a minute":       {1_000, 100_001_000 + 60*5_000, time.Minute, false},
		"more in a minute":         {1_000, 100_001_001 + 60*5_000, time.Minute, true},
		"as etcd documents it":     {1_000, 1_000_000_900, 48 * time.Hour, true},
		"the first answer":         {0, 1_000_000_900, 0, false},
		"the clock was set back":   {1_000, 100_001_000, -time.Hour, false},
		"no revision in an answer": {1_000, 0, time.Minute, false},
	} {
		now, noticed := noon, 0
		d := &restore.Detector{Now: time.Now, Clock: func() time.Time { return now }, Reread: func() {},
			Noticed: func(time.Time, time.Time, string) { noticed++ }}
		d.Observe(0, test.before)
		check := d.Expect(0)
		now = now.Add(test.elapsed)
		if err := check(test.after); errors.Is(err, store.ErrRestored) != test.want || (noticed == 1) != test.want {
			t.Errorf("%s: %v, %d restores", name, err, noticed)
		}
	}
}

// stuckPolicies never answer.
type stuckPolicies struct{ client.Reader }

func (stuckPolicies) List(ctx context.Context, _ client.ObjectList, _ ...client.ListOption) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestDetector_ProbeWaitsNoLongerThanItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &restore.Detector{API: stuckPolicies{}, Now: time.Now, Clock: time.Now}
		first, end := context.WithCancel(t.Context())
		go func() { _ = d.Probe(first) }()
		synctest.Wait()
		second, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		began := time.Now()
		if err := d.Probe(second); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a probe behind another one: %v", err)
		}
		if waited := time.Since(began); waited != time.Millisecond {
			t.Errorf("it waited %s after its context ended", waited-time.Millisecond)
		}
		end()
	})
}

// A process that does not repair holds what a record lost until another one has repaired it.
func TestGuard_GrantsNothingOnARecordThatLostState(t *testing.T) {
	p := newProcess()
	lost := rule.Latch{Quarantined: true, GrantUsed: noon, GrantAttestations: 2}
	p.memory.Latches = map[string]rule.Latch{"u": lost, "v": lost}
	p.Restored(0, "test")
	p.Recorded("u", rule.Latch{Quarantined: true}, restore.Demand{}) // as the backup has it
	if p.Outdated("u") == nil || p.Outdated("other") != nil {
		t.Error("a grant that was used can be used again, or another Machine is held")
	}
	p.Recorded("u", lost, restore.Demand{})
	p.Recorded("u", lost, restore.Demand{Quarantined: true})
	p.Recorded("u", rule.Latch{GrantUsed: noon, GrantAttestations: 2}, restore.Demand{})
	if err := p.Outdated("u"); err != nil {
		t.Errorf("it was repaired, and an administrator has lifted the quarantine: %v", err)
	}
	p.acknowledge(noon)
	if err := p.Outdated("v"); err != nil {
		t.Errorf("acknowledged: %v", err)
	}
}

// A stolen front can write every record. What it takes from one while a restore is held is set again.
func TestAttack_T58_ALatchThatAFrontRemovesIsSetAgain(t *testing.T) {
	p := newProcess()
	p.memory.Latches = map[string]rule.Latch{
		"quarantined": {Quarantined: true}, "joined": {Joined: true}, "granted": {Joined: true},
	}
	p.Restored(0, "test")
	records := map[string]*v1alpha1.MachineAttestation{}
	r := p.reconciler(records)
	reconciled := func() {
		t.Helper()
		if _, err := r.Reconcile(t.Context(), reconcile.Request{}); err != nil {
			t.Fatal(err)
		}
		for uid, rec := range records {
			p.Recorded(uid, rule.Latch{Quarantined: rec.Status.Quarantined,
				Joined: rec.Status.Phase == v1alpha1.PhaseJoined}, restore.Demand{})
		}
	}
	reconciled()
	for _, uid := range []string{"quarantined", "joined"} {
		records[uid].Status.Quarantined, records[uid].Status.Phase = false, v1alpha1.PhaseFetched
		p.Recorded(uid, rule.Latch{}, restore.Demand{})
		if p.Outdated(uid) == nil || !p.Rekeyed() {
			t.Errorf("%s: removed, and the Machine is not held, or all others are", uid)
		}
	}
	p.Recorded("granted", rule.Latch{}, restore.Demand{Granted: true}) // an administrator lets it attest again
	if p.Outdated("granted") != nil {
		t.Error("a grant does not count")
	}
	reconciled()
	if !records["quarantined"].Status.Quarantined || records["joined"].Status.Phase != v1alpha1.PhaseJoined ||
		p.Outdated("quarantined") != nil || p.Outdated("joined") != nil || p.Repairing() {
		t.Errorf("not set again: %+v", records)
	}
	p.acknowledge(noon)
	p.Recorded("quarantined", rule.Latch{}, restore.Demand{})
	if p.Outdated("quarantined") != nil {
		t.Error("acknowledged, and held")
	}
}

// A time with a typing error must not acknowledge the restores to come.
func TestGuard_IgnoresAnAcknowledgementInTheFuture(t *testing.T) {
	p := newProcess()
	p.Restored(0, "test")
	future := noon.AddDate(1, 0, 0)
	p.acknowledge(future)
	problems := strings.Join(p.Problems(), "\n")
	if !p.Unacknowledged() || !strings.Contains(problems, "2027-11-21T12:00:00Z is in the future") {
		t.Errorf("unacknowledged %t: %q", p.Unacknowledged(), problems)
	}
	p.acknowledge(noon.Add(-time.Second))
	problems = strings.Join(p.Problems(), "\n")
	if !p.Unacknowledged() || strings.Contains(problems, "is in the future") {
		t.Errorf("corrected to a time before the restore: %q", problems)
	}
	p.acknowledge(future)
	p.acknowledge(noon.Add(5 * time.Minute)) // a clock that is fast
	if p.Unacknowledged() {
		t.Errorf("corrected: %q", p.Problems())
	}
	p.Restored(1, "another")
	if problems := strings.Join(p.Problems(), "\n"); strings.Contains(problems, "is in the future") {
		t.Errorf("the next restore: %q", problems)
	}
}
