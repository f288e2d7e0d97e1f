// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"slices"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

// Token decides whether the provisioning token is accepted after a restore. A restored token may have been invalidated
// after the backup. A missing Secret would open the pools that only the token opens. The verifier cannot replace the
// token itself, as it replaces keys, because machines and pointer configs have it.
//
//   - A restored token is valid again if it was in force before the restore, for at least as long. A token within its
//     grace period is not, if it is the current one again: it would have no end.
//   - Otherwise no token is accepted until the Secret has a new one, without a restored one as the previous token.
//
// An administrator who wants to use the restored token acknowledges the restore.
type Token struct {
	Before provisioning.View // what was in force

	read bool
	back provisioning.Tokens // the first tokens that were read after the restore
}

// Accept reports whether the current tokens of the Secret are accepted, and the view to compare them with. data is nil
// if the Secret does not exist.
func (t *Token) Accept(now time.Time, data map[string][]byte) (known provisioning.View, ok bool) {
	var tokens provisioning.Tokens
	if data != nil {
		tokens, _ = provisioning.Parse(data) // the caller reports the error
	}
	asBefore := t.asBefore(now, data != nil, tokens)
	if asBefore {
		known = t.Before
	}
	if !t.read {
		t.read, t.back = true, tokens
		return known, asBefore
	}
	return known, asBefore && data != nil || t.isNew(now, tokens)
}

// asBefore reports whether every token that is valid now was already valid before, for at least as long.
func (t *Token) asBefore(now time.Time, exists bool, tokens provisioning.Tokens) bool {
	before, presence := t.Before.At(now)
	if !exists {
		return presence == provisioning.Absent
	}
	if tokens.Current.Empty() {
		return false
	}
	for _, token := range tokens.Valid(now) {
		switch before.Check(now, token.Expose()) {
		case provisioning.Current:
		case provisioning.Previous:
			if equal(token, tokens.Current) || tokens.PreviousExpires.After(before.PreviousExpires) {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// isNew reports whether the token was created after the restore, and no restored token is valid in addition.
func (t *Token) isNew(now time.Time, tokens provisioning.Tokens) bool {
	return !tokens.Current.Empty() && !slices.ContainsFunc(tokens.Valid(now), func(s secret.Bytes) bool {
		return equal(s, t.back.Current) || equal(s, t.back.Previous)
	})
}

func equal(a, b secret.Bytes) bool { return string(a.Expose()) == string(b.Expose()) }
