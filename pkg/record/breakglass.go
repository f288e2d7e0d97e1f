package record

import (
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/token"
)

// A break-glass token is made by an administrator who holds the signing key, for
// a machine that cannot attest. It names no Machine; its record begins with its
// first use and serves to count and to show it.
const (
	// BreakGlassNamespace is the namespace in a break-glass token's subject.
	BreakGlassNamespace = "break-glass"

	// MaxBreakGlass is the longest that one lives.
	MaxBreakGlass = time.Hour

	// breakGlassUID begins a break-glass token's machine UID.
	breakGlassUID  = "break-glass:"
	breakGlassUses = 3
)

// BreakGlassUID is the machine UID in the break-glass token with this id.
func BreakGlassUID(tokenID string) string { return breakGlassUID + tokenID }

// IsBreakGlass reports whether a machine UID is a break-glass token's.
func IsBreakGlass(uid string) bool { return strings.HasPrefix(uid, breakGlassUID) }

// BreakGlass checks a break-glass token and, when take is set, takes one use. It
// refuses one that was made for longer than [MaxBreakGlass].
func BreakGlass(rec *v1alpha1.MachineAttestation, c token.Claims, take bool,
	now time.Time) (*v1alpha1.MachineAttestation, error) {
	if c.MachineUID != BreakGlassUID(c.ID) || c.Expiry.Sub(c.IssuedAt) > MaxBreakGlass {
		return nil, reason.Deny(reason.TokenInvalid, "not a break-glass token, or made for longer than %v", MaxBreakGlass)
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
	if !take {
		return nil, nil
	}
	next.Status.Token.Uses++
	next.Status.Phase, next.Status.Pool = v1alpha1.PhaseFetched, c.Pool
	note(&next.Status, now, "BreakGlass", "", "", "full config of pool "+c.Pool+" by an administrator's token")
	return next, nil
}
