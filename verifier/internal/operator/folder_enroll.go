// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
)

// inForceEvery is how often a serving verifier is asked. It reads its folder every two seconds.
const inForceEvery = 200 * time.Millisecond

// InForce waits until the state of the serving verifier has what was written, or ctx ends. It returns
// [admin.ErrNotServing] if none serves. Problems are those of the folder as the verifier reported them last.
func (f *Folder) InForce(ctx context.Context, has func(*admin.State) bool) (problems []string, err error) {
	err = wait.PollUntilContextCancel(ctx, inForceEvery, true, func(ctx context.Context) (bool, error) {
		s, err := admin.Ask(ctx, f.Config.Path("state", "admin.sock"))
		switch {
		case errors.Is(err, admin.ErrNotServing):
			return false, err
		case err != nil:
			return false, nil
		}
		problems = s.Problems
		return has(s), nil
	})
	return problems, err
}

// UsesKeys reports whether the verifier of a folder uses the keys or provisioning tokens with these IDs.
func UsesKeys(s *admin.State, ids ...string) bool {
	return !slices.ContainsFunc(ids, func(id string) bool { return !slices.Contains(s.Keys, id) })
}

// Enrolled reports whether a machine has each EK of an enrollment already. A stand-in must not have another one.
func Enrolled(s *admin.State, m *v1alpha1.MachineAttestation) bool {
	return slices.ContainsFunc(s.Machines, func(have admin.Machine) bool {
		return isAbout(m, have.Name) && usesEKs(have, m)
	})
}

// usesEKs reports whether a machine has each EK of m, and its pool. One that m stands in for has no other EK.
func usesEKs(have admin.Machine, m *v1alpha1.MachineAttestation) bool {
	if m.Spec.MachineRef == nil && !slices.Contains(have.Pools, m.Spec.Pool) {
		return false
	}
	for _, ek := range m.Spec.EKSHA256 {
		if !slices.ContainsFunc(have.EKSHA256, func(h string) bool { return strings.EqualFold(h, ek) }) {
			return false
		}
	}
	return m.Spec.MachineRef != nil || len(have.EKSHA256) == len(m.Spec.EKSHA256)
}
