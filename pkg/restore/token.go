package restore

import (
	"slices"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

// Token decides whether the provisioning token is accepted after a restore. What came back may have been voided since
// the backup, and a Secret that is missing would open the pools that only the token opens. The verifier cannot replace
// the token by itself, as it does with keys: machines and pointer configs have it.
//
//   - What came back was in force: it is in force again.
//   - Otherwise no token is accepted until the Secret has another one. That one is not accepted together with one
//     that came back, as the previous token.
//
// An administrator who wants what came back, also for a grace, acknowledges the restore.
type Token struct {
	Before provisioning.View // what was in force

	read bool
	back provisioning.Tokens // what was read first after the restore
}

// Accept reports whether what the Secret has now is accepted, and with what it is to be compared; data is nil if there
// is no Secret.
func (t *Token) Accept(now time.Time, data map[string][]byte) (known provisioning.View, ok bool) {
	var tokens provisioning.Tokens
	if data != nil {
		tokens, _ = provisioning.Parse(data) // the caller reports what is wrong
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

// asBefore reports whether every token that is valid now was valid before, and for as long.
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
			if !equal(token, tokens.Current) && tokens.PreviousExpires.After(before.PreviousExpires) {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// isNew reports whether the token was made after the restore, and no token that came back is valid beside it.
func (t *Token) isNew(now time.Time, tokens provisioning.Tokens) bool {
	return !tokens.Current.Empty() && !slices.ContainsFunc(tokens.Valid(now), func(s secret.Bytes) bool {
		return equal(s, t.back.Current) || equal(s, t.back.Previous)
	})
}

func equal(a, b secret.Bytes) bool { return string(a.Expose()) == string(b.Expose()) }
