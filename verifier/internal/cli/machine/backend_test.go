// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
)

// fakeBackend is a struct of funcs; nil means the zero answer.
type fakeBackend struct {
	env.Backend
	state  func() (*admin.State, error)
	enroll func(*v1alpha1.MachineAttestation, operator.Write) error
	// enrollContext gets the context of Enroll.
	enrollContext func(context.Context, operator.Write) error
	forgetFormer  func(*v1alpha1.MachineAttestation) (bool, error)
	quarantine    func() ([]operator.Written, error)
	inForce       func() *admin.State // the state of the verifier that serves
	reattest      func() ([]operator.Written, error)
	denials       func() ([]audit.Denial, error)
	events        func() ([]operator.Event, error)
}

func (f *fakeBackend) State(context.Context) (*admin.State, error) {
	if f.state == nil {
		return &admin.State{}, nil
	}
	return f.state()
}

func (f *fakeBackend) Pools(context.Context) ([]string, error) { return nil, nil }

func (f *fakeBackend) Enroll(ctx context.Context, m *v1alpha1.MachineAttestation,
	w operator.Write) (operator.Written, error) {
	if f.enrollContext != nil {
		if err := f.enrollContext(ctx, w); err != nil {
			return operator.Written{}, err
		}
	}
	if f.enroll != nil {
		if err := f.enroll(m, w); err != nil {
			return operator.Written{}, err
		}
	}
	m.Namespace = "default"
	return operator.Written{Where: m.Name, Done: "created", Object: m}, nil
}

func (f *fakeBackend) ForgetFormer(_ context.Context, m *v1alpha1.MachineAttestation) (bool, error) {
	if f.forgetFormer == nil {
		return false, nil
	}
	return f.forgetFormer(m)
}

func (f *fakeBackend) Quarantine(context.Context, string, bool, operator.Write) ([]operator.Written, error) {
	return f.quarantine()
}

func (f *fakeBackend) Reattest(context.Context, string, time.Time, operator.Write) ([]operator.Written, error) {
	return f.reattest()
}

func (f *fakeBackend) Find(ctx context.Context, _ string) (*admin.State, error) { return f.State(ctx) }

func (f *fakeBackend) Events(context.Context, admin.Machine) ([]operator.Event, error) {
	if f.events == nil {
		return nil, nil
	}
	return f.events()
}

func (f *fakeBackend) InForce(_ context.Context, has func(*admin.State) bool) ([]string, error) {
	if f.inForce == nil {
		return nil, admin.ErrNotServing
	}
	if !has(f.inForce()) {
		return nil, errors.New("not in force")
	}
	return nil, nil
}

func (f *fakeBackend) Denials(context.Context) ([]audit.Denial, error) {
	if f.denials == nil {
		return nil, nil
	}
	return f.denials()
}

// forbidden is how the API server denies an administrator the right to list.
func forbidden() error {
	return apierrors.NewForbidden(schema.GroupResource{Group: v1alpha1.GroupVersion.Group,
		Resource: "machineattestations"}, "", errors.New(`User "enroller" cannot list resource "machineattestations"`))
}

// command is a command line that writes to buffers.
func command(t *testing.T) (cmd *cobra.Command, stdout, stderr *strings.Builder) {
	t.Helper()
	cmd, stdout, stderr = &cobra.Command{}, &strings.Builder{}, &strings.Builder{}
	cmd.SetContext(t.Context())
	cmd.SetIn(strings.NewReader(""))
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	return cmd, stdout, stderr
}

// enrollOptionsOf are the options without any flag.
func enrollOptionsOf(t *testing.T) enrollOptions {
	t.Helper()
	cmd := &cobra.Command{}
	wait := time.Second
	return enrollOptions{pool: "worker", wait: &wait, write: env.WriteFlags(cmd), warned: map[string]bool{}}
}

// list makes a list of two machines the standard input.
func list(cmd *cobra.Command) {
	cmd.SetIn(strings.NewReader("rack1 " + strings.Repeat("a", 64) + "\nrack2 " + strings.Repeat("b", 64) + "\n"))
}
