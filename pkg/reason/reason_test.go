// SPDX-License-Identifier: Apache-2.0

package reason_test

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

func TestTable_MatchesTheContractsEnum(t *testing.T) {
	known := map[int32]bool{}
	var last reason.Code
	for _, c := range reason.Codes() {
		known[int32(c)] = true
		if c <= last {
			t.Errorf("%v is out of order", c)
		}
		last = c
	}
	for n, name := range mcsattestv1.Reason_name {
		if n != 0 && !known[n] {
			t.Errorf("%s is not in the table", name)
		}
	}
	if len(known) != len(mcsattestv1.Reason_name)-1 {
		t.Errorf("the table has %d codes, the contract %d", len(known), len(mcsattestv1.Reason_name)-1)
	}
}

func TestTable_EntriesAreCompleteAndConsistent(t *testing.T) {
	// The pattern of a condition's reason in Kubernetes.
	pattern := regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$`)
	for _, c := range reason.Codes() {
		i := c.Info()
		if !pattern.MatchString(i.Name) || i.Title == "" || i.Hint == "" || i.Class == 0 {
			t.Errorf("%v: incomplete: %+v", c, i)
		}
		if i.Temporary != (i.GateStatus == http.StatusServiceUnavailable) {
			t.Errorf("%v: temporary %t, but the gate answers %d", c, i.Temporary, i.GateStatus)
		}
		if got, ok := reason.Parse(i.Name); !ok || got != c {
			t.Errorf("%v: Parse(%q) = %v, %t", c, i.Name, got, ok)
		}
		evidence := i.Class == mcsattestv1.DenialClass_DENIAL_CLASS_EVIDENCE
		if evidence && i.Temporary {
			t.Errorf("%v: a fault in the caller's proof must be final", c)
		}
	}
}

func TestFrom_MapsOtherErrorsToInternal(t *testing.T) {
	if d := reason.From(errors.New("disk on fire")); d.Code != reason.Internal || !d.Code.Temporary() {
		t.Errorf("got %v", d)
	}
	if reason.From(nil) != nil {
		t.Error("nil became a denial")
	}
	wrapped := fmt.Errorf("outer: %w", reason.Deny(reason.TokenPool, "for %s", "master"))
	if d := reason.From(wrapped); d.Code != reason.TokenPool || d.Detail != "for master" {
		t.Errorf("got %v", d)
	}
	if i := reason.Code(9999).Info(); !i.Temporary || i.Name != "Internal" {
		t.Errorf("an unknown code is answered as %+v", i)
	}
}

// The agent shows who must act: temporary reasons about a machine are of class
// "not yet", those about the verifier of class "unavailable".
func TestTemporaryReasons_ClassNamesWhoMustAct(t *testing.T) {
	unavailable := map[reason.Code]bool{
		reason.RateLimited: true, reason.StoreUnavailable: true, reason.UpstreamUnavailable: true,
		reason.UpstreamInvalid: true,
		reason.ShuttingDown:    true, reason.Internal: true, reason.ReferenceValuesMissing: true,
		reason.ProviderUnavailable:   true,
		reason.CredentialUnavailable: true, reason.ConfigUnavailable: true,
	}
	retry := map[reason.Code]bool{ // a new challenge or another replica is enough
		reason.ChallengeKeyUnknown: true, reason.ChallengeExpired: true, reason.PolicyChanged: true,
		reason.TokenKeyUnknown: true,
	}
	for _, c := range reason.Codes() {
		if !c.Temporary() || retry[c] {
			continue
		}
		want := mcsattestv1.DenialClass_DENIAL_CLASS_NOT_YET
		if unavailable[c] {
			want = mcsattestv1.DenialClass_DENIAL_CLASS_UNAVAILABLE
		}
		if got := c.Info().Class; got != want {
			t.Errorf("%v is of class %v, want %v", c, got, want)
		}
	}
}
