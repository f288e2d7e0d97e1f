// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
)

// A list of which the end is not read would leave machines out without an error.
func TestReadList_ReadsLinesOfAnyLength(t *testing.T) {
	list := "rack1 " + strings.Repeat("a", 64) + "\n# " + strings.Repeat("x", 1<<17) + "\nrack2 " + strings.Repeat("b", 64)
	all, err := readList("list", []byte(list))
	if err != nil || len(all) != 2 || all[1].name != "rack2" || all[1].from != "list:3" {
		t.Errorf("%d machines, %v", len(all), err)
	}
}

// An administrator who may create enrollments and may not list them gets the same warning for one and for many.
func TestEnrollMany_WithoutTheRightToListOnlyWarns(t *testing.T) {
	var stored, tried []string
	b := &fakeBackend{
		state: func() (*admin.State, error) { return nil, forbidden() },
		enroll: func(m *v1alpha1.MachineAttestation, w operator.Write) error {
			if w.DryRun == operator.DryRunServer {
				tried = append(tried, m.Name)
			} else {
				stored = append(stored, m.Name)
			}
			return nil
		},
	}
	cmd, _, stderr := command(t)
	o := enrollOptionsOf(t)
	o.file = "-"
	list(cmd)
	if err := enrollMany(cmd, &env.Env{}, b, o); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(stored, []string{"rack1", "rack2"}) || !slices.Equal(tried, stored) ||
		strings.Count(stderr.String(), "warning: could not check whether another machine has this EK") != 1 {
		t.Errorf("tried %v, stored %v; %s", tried, stored, stderr)
	}
}

// Without the state, an enrollment that exists may be of another TPM.
func TestEnrollMany_WithoutTheRightToListWritesAllOrNone(t *testing.T) {
	stored := 0
	b := &fakeBackend{
		state: func() (*admin.State, error) { return nil, forbidden() },
		enroll: func(m *v1alpha1.MachineAttestation, w operator.Write) error {
			if m.Name == "rack2" {
				return errors.New("MachineAttestation default/rack2 exists")
			}
			if w.DryRun != operator.DryRunServer {
				stored++
			}
			return nil
		},
	}
	cmd, _, _ := command(t)
	o := enrollOptionsOf(t)
	o.file = "-"
	list(cmd)
	err := enrollMany(cmd, &env.Env{}, b, o)
	if err == nil || !strings.Contains(err.Error(), "nothing was written: rack2: ") || stored != 0 {
		t.Errorf("%d stored, %v", stored, err)
	}
}

func TestEnrollMany_AnInterruptStopsBeforeTheNextMachine(t *testing.T) {
	for name, c := range map[string]struct {
		during operator.DryRun // the interrupt comes while the first machine is written or tried
		want   string
		stored int
	}{
		"before the first machine is written": {operator.DryRunServer, "nothing was written: interrupted: ", 0},
		"after the first machine":             {operator.DryRunNone, "after 1 of 2 machines: interrupted: ", 1},
	} {
		t.Run(name, func(t *testing.T) {
			cmd, _, _ := command(t)
			ctx, cancel := context.WithCancel(t.Context())
			cmd.SetContext(ctx)
			stored := 0
			b := &fakeBackend{enroll: func(_ *v1alpha1.MachineAttestation, w operator.Write) error {
				if w.DryRun != operator.DryRunServer {
					stored++
				}
				if w.DryRun == c.during || w.DryRun == "" && c.during == operator.DryRunNone {
					cancel()
				}
				return nil
			}}
			o := enrollOptionsOf(t)
			o.file = "-"
			list(cmd)
			err := enrollMany(cmd, &env.Env{}, b, o)
			if !errors.Is(err, context.Canceled) || !strings.HasPrefix(err.Error(), c.want) || stored != c.stored {
				t.Errorf("%d stored, %v", stored, err)
			}
		})
	}
}

// Only if the backend deleted nothing may the error claim that nothing was written.
func TestEnroll_ReportsThatTheEnrollmentWasDeleted(t *testing.T) {
	m := &v1alpha1.MachineAttestation{}
	m.Name, m.Spec.Pool = "rack1", "worker"
	for forgot, want := range map[bool]string{
		false: "nothing was written: failed",
		true:  "failed",
	} {
		o := enrollOptionsOf(t)
		o.write.Replace = true
		b := &fakeBackend{forgetFormer: func(*v1alpha1.MachineAttestation) (bool, error) {
			return forgot, errors.New("failed")
		}}
		if _, err := write(t.Context(), b, o, m); err == nil || err.Error() != want {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// The enrollment must follow, although an interrupt came.
func TestEnroll_CompletesAReplacementThatItBegan(t *testing.T) {
	m := &v1alpha1.MachineAttestation{}
	m.Name, m.Spec.Pool = "rack1", "worker"
	ctx, cancel := context.WithCancel(t.Context())
	stored := 0
	b := &fakeBackend{
		forgetFormer: func(*v1alpha1.MachineAttestation) (bool, error) {
			cancel()
			return true, nil
		},
		enrollContext: func(ctx context.Context, w operator.Write) error {
			if w.DryRun != operator.DryRunServer {
				stored++
			}
			return ctx.Err()
		},
	}
	o := enrollOptionsOf(t)
	o.write.Replace = true
	if _, err := write(ctx, b, o, m); err != nil || stored != 1 {
		t.Errorf("%d stored, %v", stored, err)
	}
}

func TestEnrollMany_ADryRunClaimsNoEnrollment(t *testing.T) {
	cmd, _, stderr := command(t)
	o := enrollOptionsOf(t)
	o.file, o.write.DryRun = "-", operator.DryRunClient
	list(cmd)
	if err := enrollMany(cmd, &env.Env{}, &fakeBackend{}, o); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(stderr.String(), "2 machines would be enrolled, 0 are already enrolled") {
		t.Error(stderr)
	}
}

// After a "forget" that did not delete the record, the record of the former TPM comes back with the enrollment.
func TestFinish_WarnsOfTheRecordOfAnotherTPM(t *testing.T) {
	m := &v1alpha1.MachineAttestation{}
	m.Name, m.Namespace, m.Spec.Pool, m.Spec.EKSHA256 = "rack1", "default", "worker", []string{strings.Repeat("a", 64)}
	record := func(ek string) *fakeBackend {
		r := &v1alpha1.MachineAttestationStatus{}
		r.Identity.EKSHA256 = ek
		return &fakeBackend{inForce: func() *admin.State {
			return &admin.State{Serving: true, Machines: []admin.Machine{{Name: "default/rack1", Pools: []string{"worker"},
				EKSHA256: m.Spec.EKSHA256, Record: r}}}
		}}
	}
	for ek, want := range map[string]int{strings.Repeat("a", 64): 0, strings.Repeat("c", 64): 1} {
		cmd, _, stderr := command(t)
		if err := finish(cmd, record(ek), enrollOptionsOf(t), m); err != nil {
			t.Fatal(err)
		}
		if strings.Count(stderr.String(), "warning: the record of default/rack1 is of the EK "+ek) != want {
			t.Errorf("record of %s: %s", ek, stderr)
		}
	}
}
