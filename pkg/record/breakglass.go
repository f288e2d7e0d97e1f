// SPDX-License-Identifier: Apache-2.0

package record

import (
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/token"
)

// An administrator with the signing key makes a break-glass token for a machine that
// cannot attest. The token names no Machine. Its record starts with its first use, counts
// the uses, and shows them to administrators.
const (
	// BreakGlassNamespace is the namespace in a break-glass token's subject.
	BreakGlassNamespace = "break-glass"

	// MaxBreakGlass is the longest lifetime of a break-glass token.
	MaxBreakGlass = time.Hour

	// breakGlassUID is the prefix of a break-glass token's machine UID.
	breakGlassUID  = "break-glass:"
	breakGlassUses = 3
)

// BreakGlassUID returns the machine UID of the break-glass token with this ID.
func BreakGlassUID(tokenID string) string { return breakGlassUID + tokenID }

// IsBreakGlass reports whether a machine UID is that of a break-glass token.
func IsBreakGlass(uid string) bool { return strings.HasPrefix(uid, breakGlassUID) }

// BreakGlass checks a break-glass token and, if count is set, counts one use. It denies a
// token with a lifetime longer than [MaxBreakGlass].
func BreakGlass(rec *v1alpha1.MachineAttestation, c token.Claims, count bool,
	now time.Time) (*v1alpha1.MachineAttestation, error) {
	if c.MachineUID != BreakGlassUID(c.ID) || c.Expiry.Sub(c.IssuedAt) > MaxBreakGlass {
		return nil, reason.Deny(reason.TokenInvalid, "not a break-glass token, or its lifetime is longer than %v",
			MaxBreakGlass)
	}
	next := &v1alpha1.MachineAttestation{}
	if rec != nil {
		next = rec.DeepCopy()
	} else {
		next.APIVersion, next.Kind = v1alpha1.APIVersion, v1alpha1.KindMachineAttestation
		next.Namespace, next.Name = BreakGlassNamespace, strings.TrimPrefix(c.Subject, BreakGlassNamespace+"/")
		next.Status.MachineUID = c.MachineUID
		next.Status.Token = &v1alpha1.TokenStatus{ID: c.ID, Pool: c.Pool, Expiry: metav1.NewTime(c.Expiry),
			MaxUses: breakGlassUses}
	}
	if next.Status.Token.Uses >= next.Status.Token.MaxUses {
		return nil, reason.Deny(reason.TokenUsedUp, "break-glass token %s was used %d times", c.ID, next.Status.Token.Uses)
	}
	if !count {
		return nil, nil
	}
	next.Status.Token.Uses++
	next.Status.Phase, next.Status.Pool = v1alpha1.PhaseFetched, c.Pool
	// In a cluster, the object's name has the id of the token, and not the administrator's name for it.
	note(&next.Status, now, "BreakGlass", "", "", "full config of pool "+c.Pool+" by an administrator's token, "+c.Subject)
	return next, nil
}
