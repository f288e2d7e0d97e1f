// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/token"
)

const (
	// With every character of base64, including those that URLs escape.
	current  = "AAAA+bbb/CCC+ddd/EEE+fff/GGG+hhh/III+jjj/KKK="
	previous = "1111-bbb_2222-ddd_3333-fff_4444-hhh_5555-jjj"
	wrong    = "zzzz-bbb_yyyy-ddd_xxxx-fff_wwww-hhh_vvvv-jjj"
	// attested has the form of an attestation token; fakeTokens only accepts "good".
	attested = "eyJhbGciOiJFUzI1NiJ9.eyJwb29sIjoid29ya2VyIn0.c2ln"
)

var graceEnds = noon.Add(time.Hour)

// shared returns a view of both tokens.
func shared(t testing.TB) provisioning.View {
	t.Helper()
	v, _ := provisioning.View{}.Read(noon, map[string][]byte{
		provisioning.KeyToken: []byte(current + "\n"), provisioning.KeyPrevious: []byte(previous),
		provisioning.KeyPreviousExpires: []byte(graceEnds.Format(time.RFC3339)),
	}, time.Hour)
	if v.Err() != nil {
		t.Fatal(v.Err())
	}
	return v
}

// newProvisioned returns a gate for a pool that the provisioning token by itself opens.
func newProvisioned(t testing.TB) *fixture {
	f := newFixture()
	v := shared(t)
	f.policy.ProvisioningToken, f.policy.OnlyProvisioningToken = true, true
	f.Provisioning.View = func() provisioning.View { return v }
	f.Tokens = fakeTokens{verify: func(raw []byte) (token.Claims, error) {
		if string(raw) != attested {
			return token.Claims{}, reason.Deny(reason.TokenInvalid, "not ours")
		}
		return token.Claims{Pool: "worker", ID: "jti-1", Subject: "ns/worker-a", MachineUID: "uid"}, nil
	}}
	return f
}

func (f *fixture) last(t testing.TB) Decision {
	t.Helper()
	if len(f.decisions) == 0 {
		t.Fatal("no decision")
	}
	return f.decisions[len(f.decisions)-1]
}

// codeOf returns the reason of the last decision, or "".
func (f *fixture) codeOf(t testing.TB) string {
	t.Helper()
	if d := f.last(t).Denial; d != nil {
		return d.Code.String()
	}
	return ""
}

// A1, A5, A9: at the exact limits, by the time of the request.
func TestProvisioningTokenOpensThePoolThatListsIt(t *testing.T) {
	for _, c := range []struct {
		name, presented string
		at              time.Time
		status          int
		reason          string
		match           provisioning.Match
	}{
		{"none", "", noon, 401, "TokenMissing", provisioning.None},
		{"the current one", current, noon, 200, "", provisioning.Current},
		{"the current one, much later", current, noon.Add(1000 * time.Hour), 200, "", provisioning.Current},
		{"the previous one in its grace", previous, graceEnds.Add(-1), 200, "", provisioning.Previous},
		{"the previous one at its end", previous, graceEnds, 401, "ProvisioningTokenInvalid", provisioning.Expired},
		{"another", wrong, noon, 401, "ProvisioningTokenInvalid", provisioning.None},
		{"a part", current[:43], noon, 401, "ProvisioningTokenInvalid", provisioning.None},
		{"an attestation's", attested, noon, 200, "", provisioning.None},
		{"one like an attestation's", attested + "x", noon, 401, "TokenInvalid", provisioning.None},
	} {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			f := newProvisioned(t)
			f.Now = func() time.Time { return c.at }
			r := get("/config/worker", c.presented)
			r.Method = method
			res := f.do(t, r)
			if d := f.last(t); res.StatusCode != c.status || f.codeOf(t) != c.reason || d.Provisioning != c.match ||
				d.Unenforced {
				t.Errorf("%s %s: %d %s %v", method, c.name, res.StatusCode, f.codeOf(t), d.Provisioning)
			}
			// Without a Machine no use is counted.
			if redeemed := f.redeem.checks+f.redeem.redeems > 0; redeemed != (c.presented == attested) {
				t.Errorf("%s %s: %d checks, %d redemptions", method, c.name, f.redeem.checks, f.redeem.redeems)
			}
			if len(f.lines) != 0 && c.status != 200 || len(f.lines) != 1 && c.status == 200 {
				t.Errorf("%s %s: lines %q", method, c.name, f.lines)
			}
		}
	}
}

// Rule 14: a pool that does not list it rejects it, without a fallback.
func TestProvisioningToken_IsRejectedByOtherPools(t *testing.T) {
	for _, preApproved := range []bool{false, true} {
		f := newProvisioned(t)
		f.policy = PoolPolicy{Label: "worker", PreApproved: preApproved, URLParameter: true}
		f.PreApproved = serve(`{"ignition":{"version":"3.4.0"}}`)
		if res := f.do(t, get("/config/worker", current)); res.StatusCode != 401 || f.codeOf(t) != "TokenInvalid" ||
			f.last(t).Provisioning != provisioning.None {
			t.Errorf("%d %s", res.StatusCode, f.codeOf(t))
		}
		want, code := 401, "TokenMissing"
		if preApproved {
			want, code = 200, ""
		}
		if res := f.do(t, get("/config/worker?token="+url.QueryEscape(current), "")); res.StatusCode != want ||
			f.codeOf(t) != code {
			t.Errorf("in the URL: %d %s", res.StatusCode, f.codeOf(t))
		}
	}
	// Also under PreApproved, a wrong token is denied if the pool lists it.
	f := newProvisioned(t)
	f.policy.PreApproved = true
	f.PreApproved = serve(`{"ignition":{"version":"3.4.0"}}`)
	if res := f.do(t, get("/config/worker", wrong)); res.StatusCode != 401 {
		t.Errorf("a wrong one under PreApproved: %d", res.StatusCode)
	}
	if res := f.do(t, get("/config/worker", "")); res.StatusCode != 200 || f.last(t).Outcome != "pre-approved" {
		t.Errorf("none under PreApproved: %d", res.StatusCode)
	}
	if res := f.do(t, get("/config/worker", current)); res.StatusCode != 200 || f.last(t).Outcome != "allowed" {
		t.Errorf("the right one under PreApproved: %d %s", res.StatusCode, f.last(t).Outcome)
	}
}

// A4, A6.
func TestProvisioningTokenInTheURL(t *testing.T) {
	for _, c := range []struct {
		name, query, header string
		status              int
		reason              string
	}{
		{"escaped", "token=" + url.QueryEscape(current), "", 200, ""},
		{"as people write it, with its plus signs", "token=" + current, "", 200, ""},
		{"the previous one", "token=" + previous, "", 200, ""},
		{"beside another parameter", "a=b&token=" + previous + "&c", "", 200, ""},
		{"a wrong one", "token=" + wrong, "", 401, "ProvisioningTokenInvalid"},
		{"an empty one", "token=", "", 401, "TokenInvalid"},
		{"without a value", "token", "", 401, "TokenInvalid"},
		{"a space", "token=a%20b", "", 401, "TokenInvalid"},
		{"a broken escape", "token=%zz", "", 401, "TokenInvalid"},
		{"another name", "access_token=" + previous, "", 401, "TokenMissing"},
		{"another case", "Token=" + previous, "", 401, "TokenMissing"},
		{"twice the same", "token=" + previous + "&token=" + previous, "", 401, "TokenInvalid"},
		{"twice, one escaped", "token=" + previous + "&%74oken=" + wrong, "", 401, "TokenInvalid"},
		{"a broken one and a right one", "token=%zz&token=" + previous, "", 401, "TokenInvalid"},
		{"as long as a token may be", "token=" + strings.Repeat("a", 4096), "", 401, "ProvisioningTokenInvalid"},
		{"too long", "token=" + strings.Repeat("a", 4097), "", 401, "TokenInvalid"},
		{"a broken name", "%zz=a&token=" + previous, "", 200, ""},
		{"both broken", "token=%zz", "a b", 401, "TokenInvalid"},
		{"an attestation's, which belongs in no URL", "token=" + attested, "", 401, "ProvisioningTokenInvalid"},

		{"both, equal", "token=" + url.QueryEscape(current), current, 200, ""},
		{"both, wrong and equal", "token=" + wrong, wrong, 401, "ProvisioningTokenInvalid"},
		{"both valid, and different", "token=" + previous, current, 401, "TokenInvalid"},
		{"right in the header, wrong in the URL", "token=" + wrong, current, 401, "TokenInvalid"},
		{"wrong in the header, right in the URL", "token=" + previous, wrong, 401, "TokenInvalid"},
		{"right in the header, broken in the URL", "token=%zz", current, 401, "TokenInvalid"},
		// An attested machine presents its own token; the pointer config still has the other.
		{"an attestation's in the header", "token=" + previous, attested, 200, ""},
		{"an attestation's in the header, a wrong one in the URL", "token=" + wrong, attested, 200, ""},
		{"a forged attestation's in the header, a right one in the URL", "token=" + previous, attested + "x", 401,
			"TokenInvalid"},
	} {
		f := newProvisioned(t)
		f.policy.URLParameter = true
		res := f.do(t, get("/config/worker?"+c.query, c.header))
		if res.StatusCode != c.status || f.codeOf(t) != c.reason {
			t.Errorf("%s: %d %s", c.name, res.StatusCode, f.codeOf(t))
		}
		for _, r := range f.upstream {
			if r.URL.RawQuery != "" {
				t.Errorf("%s: the upstream saw %q", c.name, r.URL.RawQuery)
			}
		}
		// Without the opt-in, the URL is ignored.
		f = newProvisioned(t)
		res = f.do(t, get("/config/worker?"+c.query, ""))
		if res.StatusCode != 401 || f.codeOf(t) != "TokenMissing" {
			t.Errorf("%s, without the opt-in: %d %s", c.name, res.StatusCode, f.codeOf(t))
		}
	}
	// The URL does not compensate for an invalid header.
	f := newProvisioned(t)
	f.policy.URLParameter = true
	r := get("/config/worker?token="+previous, "")
	r.Header.Set("Authorization", "Basic "+previous)
	if res := f.do(t, r); res.StatusCode != 401 || f.codeOf(t) != "TokenInvalid" {
		t.Errorf("Basic: %d %s", res.StatusCode, f.codeOf(t))
	}
}

// A13, A15: if the token is absent, callers wait, unless the policy is open then. If it is
// unknown, they wait. Under Audit, every caller is served, and the same decision is reported.
func TestPoolWithoutAProvisioningToken(t *testing.T) {
	absent := provisioning.View{}.Gone(noon)
	broken, _ := provisioning.View{}.Read(noon, map[string][]byte{provisioning.KeyToken: []byte("short")}, time.Hour)
	keptView, _ := shared(t).Read(noon, map[string][]byte{provisioning.KeyToken: []byte("short")}, time.Hour)
	for _, c := range []struct {
		name, presented string
		view            provisioning.View
		only            bool
		open            bool
		status          int
		outcome         string
		reason          string
		unenforced      bool
	}{
		{"absent, no token", "", absent, true, false, 503, "denied", "StoreUnavailable", false},
		{"absent, an old token", current, absent, true, false, 503, "denied", "StoreUnavailable", false},
		{"absent, an attestation's", attested, absent, true, false, 200, "allowed", "", false},
		{"absent, a forged attestation's", attested + "x", absent, true, false, 401, "denied", "TokenInvalid", false},
		{"absent opens, no token", "", absent, true, true, 200, "would-deny", "TokenMissing", true},
		{"absent opens, an old token", current, absent, true, true, 503, "denied", "StoreUnavailable", false},
		{"absent opens, an attestation's", attested, absent, true, true, 200, "allowed", "", false},
		{"absent opens, a forged attestation's", attested + "x", absent, true, true, 401, "denied", "TokenInvalid", false},
		{"absent, but a TPM would do: no token", "", absent, false, false, 401, "denied", "TokenMissing", false},
		{"absent, but a TPM would do: an old token", current, absent, false, false, 503, "denied", "StoreUnavailable", false},
		{"not read, opens, no token", "", provisioning.View{}, true, true, 503, "denied", "StoreUnavailable", false},
		{"not read, no token", "", provisioning.View{}, true, false, 503, "denied", "StoreUnavailable", false},
		{"not read, a token", current, provisioning.View{}, true, false, 503, "denied", "StoreUnavailable", false},
		{"not read, an attestation's", attested, provisioning.View{}, true, false, 200, "allowed", "", false},
		{"not read, but a TPM would do: no token", "", provisioning.View{}, false, false, 401, "denied",
			"TokenMissing", false},
		{"not read, but a TPM would do: a token", current, provisioning.View{}, false, false, 503, "denied",
			"StoreUnavailable", false},
		{"broken, a token", current, broken, true, false, 503, "denied", "StoreUnavailable", false},
		{"broken, no token", "", broken, true, false, 503, "denied", "StoreUnavailable", false},
		{"broken after good, a token", current, keptView, true, false, 200, "allowed", "", false},
		{"broken after good, no token", "", keptView, true, false, 401, "denied", "TokenMissing", false},
	} {
		for _, mode := range []Mode{Enforce, Audit} {
			status, outcome := c.status, c.outcome
			if mode == Audit {
				status, outcome = 200, strings.Replace(outcome, "denied", "would-deny", 1)
			}
			f := newProvisioned(t)
			f.policy.Mode, f.policy.OnlyProvisioningToken, f.policy.OpenWithoutToken = mode, c.only, c.open
			f.Provisioning.View = func() provisioning.View { return c.view }
			res := f.do(t, get("/config/worker", c.presented))
			if d := f.last(t); res.StatusCode != status || d.Outcome != outcome || f.codeOf(t) != c.reason ||
				d.Unenforced != c.unenforced || (body(t, res) == config34) != (status == 200) {
				t.Errorf("%s, mode %d: %d %s %s %t", c.name, mode, res.StatusCode, d.Outcome, f.codeOf(t), d.Unenforced)
			}
		}
	}
	// A caller without a token still receives the pre-approved config.
	f := newProvisioned(t)
	f.policy.PreApproved, f.PreApproved = true, serve(`{"ignition":{"version":"3.4.0"}}`)
	f.Provisioning.View = func() provisioning.View { return absent }
	if res := f.do(t, get("/config/worker", "")); res.StatusCode != 200 || f.last(t).Outcome != "pre-approved" ||
		body(t, res) == config34 {
		t.Errorf("absent, with a pre-approved config: %d %s", res.StatusCode, f.last(t).Outcome)
	}
	// The zero value has no tokens.
	f = newProvisioned(t)
	f.Provisioning = Provisioning{}
	if res := f.do(t, get("/config/worker", "")); res.StatusCode != 503 {
		t.Errorf("no view: %d", res.StatusCode)
	}
}

// A14.
func TestProvisioningTokenUnderAuditAndOff(t *testing.T) {
	for _, c := range []struct{ presented, outcome, reason string }{
		{"", "would-deny", "TokenMissing"}, {wrong, "would-deny", "ProvisioningTokenInvalid"}, {current, "allowed", ""},
	} {
		f := newProvisioned(t)
		f.policy.Mode = Audit
		if res := f.do(t, get("/config/worker", c.presented)); res.StatusCode != 200 || f.last(t).Outcome != c.outcome ||
			f.codeOf(t) != c.reason {
			t.Errorf("audit %q: %d %s %s", c.presented, res.StatusCode, f.last(t).Outcome, f.codeOf(t))
		}
		f = newProvisioned(t)
		f.policy.Mode = Off
		if res := f.do(t, get("/config/worker", c.presented)); res.StatusCode != 200 || f.last(t).Outcome != "allowed" {
			t.Errorf("off %q: %d %s", c.presented, res.StatusCode, f.last(t).Outcome)
		}
	}
}

// A19: wrong guesses affect only their source, not other clients with the same address.
func TestAttack_T51_WrongGuessesDoNotLockOutTheRightToken(t *testing.T) {
	f := newProvisioned(t)
	tooMany := reason.Deny(reason.RateLimited, "too many")
	f.Admit = func(*http.Request) error { return tooMany }
	var guesses, admitted int
	f.Provisioning.Wrong = func(*http.Request) error { guesses++; return nil }
	f.Provisioning.Admit = func(*http.Request) error { admitted++; return nil }
	if res := f.do(t, get("/config/worker", current)); res.StatusCode != 200 || admitted != 1 {
		t.Errorf("the right token behind a flooded address: %d", res.StatusCode)
	}
	for _, presented := range []string{"", wrong, "eyJhbGciOiJFUzI1NiJ9.e30.AAAA"} {
		if res := f.do(t, get("/config/worker", presented)); res.StatusCode != 503 || f.codeOf(t) != "RateLimited" {
			t.Errorf("%q: %d %s", presented, res.StatusCode, f.codeOf(t))
		}
	}
	// A valid token has its own rate limit.
	if res := f.do(t, get("/config/worker", attested)); res.StatusCode != 200 {
		t.Errorf("an attestation token behind a flooded address: %d", res.StatusCode)
	}
	f.AdmitToken = func(*http.Request, token.Claims) error { return tooMany }
	if res := f.do(t, get("/config/worker", attested)); res.StatusCode != 503 || f.codeOf(t) != "RateLimited" {
		t.Errorf("an attestation token that is used too often: %d %s", res.StatusCode, f.codeOf(t))
	}
	f.AdmitToken = func(*http.Request, token.Claims) error { return nil }
	if res := f.do(t, get("/config/worker", attested)); res.StatusCode != 200 {
		t.Errorf("an attestation token within its own limit: %d %s", res.StatusCode, f.codeOf(t))
	}
	if guesses != 0 || admitted != 1 {
		t.Errorf("%d guesses looked at, %d admitted", guesses, admitted)
	}
	// Requests with the right token have their own rate limit, too.
	f.Provisioning.Admit = func(*http.Request) error { return errors.New("enough") }
	if res := f.do(t, get("/config/worker", current)); res.StatusCode != 503 || f.codeOf(t) != "RateLimited" {
		t.Errorf("%d %s", res.StatusCode, f.codeOf(t))
	}
	f.Provisioning.Admit = nil // no limit
	if res := f.do(t, get("/config/worker", current)); res.StatusCode != 200 {
		t.Errorf("%d %s", res.StatusCode, f.codeOf(t))
	}
	// Within the limit of the source, that of the provisioning token does not count the request.
	f.Admit = nil
	f.Provisioning.Admit = func(*http.Request) error { t.Error("a provisioning token was counted"); return nil }
	f.do(t, get("/config/worker", current))
	f.Admit = func(*http.Request) error { return tooMany }
	// In a pool that does not accept it, the token does not bypass the limit.
	f.policy.ProvisioningToken, f.policy.OnlyProvisioningToken, f.Provisioning.Admit = false, false, nil
	if res := f.do(t, get("/config/worker", current)); res.StatusCode != 503 {
		t.Errorf("%d", res.StatusCode)
	}

	// With too many wrong tokens callers are told to try later, but not with the right one. Only what
	// has the form of an attestation's token is no guess.
	f = newProvisioned(t)
	wrongs := 0
	f.Provisioning.Wrong = func(*http.Request) error { wrongs++; return nil }
	for _, presented := range []string{wrong, "a.b.c", "eyJhbGciOiJFUzI1NiJ9", "eyJ.a.b.c", "eyJ.a.b"} {
		f.do(t, get("/config/worker", presented))
	}
	if wrongs != 4 {
		t.Errorf("%d wrong tokens", wrongs)
	}
	f.Provisioning.View = func() provisioning.View { return provisioning.View{} }
	if f.do(t, get("/config/worker", wrong)); wrongs != 4 {
		t.Error("a guess, although there is no token to compare it with")
	}
	f = newProvisioned(t)
	f.Provisioning.Wrong = func(*http.Request) error { return tooMany }
	if res := f.do(t, get("/config/worker", wrong)); res.StatusCode != 503 || f.codeOf(t) != "RateLimited" {
		t.Errorf("%d %s", res.StatusCode, f.codeOf(t))
	}
	if res := f.do(t, get("/config/worker", previous)); res.StatusCode != 200 {
		t.Errorf("%d", res.StatusCode)
	}
}

// Rule 12: a replica with a stale view reads the token live before a final denial.
func TestProvisioningToken_ConfirmedBeforeAFinalDenial(t *testing.T) {
	fresh, _ := provisioning.View{}.Read(noon, map[string][]byte{provisioning.KeyToken: []byte(wrong)}, time.Hour)
	for _, c := range []struct {
		name   string
		view   provisioning.View
		err    error
		status int
		reason string
	}{
		{"it is the newest one", fresh, nil, 200, ""},
		{"it is wrong", shared(t), nil, 401, "ProvisioningTokenInvalid"},
		{"it was deleted", provisioning.View{}.Gone(noon), nil, 503, "StoreUnavailable"},
		{"it cannot be read", provisioning.View{}, nil, 503, "StoreUnavailable"},
		{"unknown", provisioning.View{}, errors.New("no API server"), 503, "StoreUnavailable"},
	} {
		f := newProvisioned(t)
		asked := 0
		f.Provisioning.Confirm = func(context.Context) (provisioning.View, error) { asked++; return c.view, c.err }
		if res := f.do(t, get("/config/worker", wrong)); res.StatusCode != c.status || f.codeOf(t) != c.reason || asked != 1 {
			t.Errorf("%s: %d %s, asked %d times", c.name, res.StatusCode, f.codeOf(t), asked)
		}
		if d := f.last(t); d.Provisioning.Valid() != (c.status == 200) {
			t.Errorf("%s: the audit log has the match %v", c.name, d.Provisioning)
		}
		// Neither the right token, nor none, nor too many wrong ones cause a live read.
		f.do(t, get("/config/worker", current))
		f.do(t, get("/config/worker", ""))
		f.Provisioning.Wrong = func(*http.Request) error { return reason.Deny(reason.RateLimited, "") }
		f.do(t, get("/config/worker", wrong))
		if asked != 1 {
			t.Errorf("%s: asked %d times", c.name, asked)
		}
	}
}

// The audit log tells administrators which token it was, and why there is none to compare with.
func TestProvisioningDenials_NameTheCause(t *testing.T) {
	broken, _ := provisioning.View{}.Read(noon, map[string][]byte{provisioning.KeyToken: []byte("short")}, time.Hour)
	for want, c := range map[string]struct {
		presented string
		view      provisioning.View
		confirm   error
	}{
		"the header has the provisioning token, but the URL has another one": {presented: current, view: shared(t)},
		"the previous provisioning token, whose grace period ended at 2026-11-01T13:00:00Z": {presented: previous,
			view: shared(t)},
		"neither the current provisioning token nor the previous one":              {presented: wrong, view: shared(t)},
		"there is no provisioning token":                                           {view: provisioning.View{}.Gone(noon)},
		"the provisioning token cannot be read: token: the token has 5 characters": {view: broken},
		"the provisioning token has not been read yet":                             {},
		"read the provisioning token again: the API server is unavailable": {presented: wrong, view: shared(t),
			confirm: errors.New("the API server is unavailable")},
	} {
		f := newProvisioned(t)
		f.Now = func() time.Time { return graceEnds }
		f.policy.URLParameter = true
		f.Provisioning.View = func() provisioning.View { return c.view }
		if c.confirm != nil {
			f.Provisioning.Confirm = func(context.Context) (provisioning.View, error) { return c.view, c.confirm }
		}
		path := "/config/worker"
		if c.presented == current {
			path += "?token=" + wrong
		}
		f.do(t, get(path, c.presented))
		if d := f.last(t).Denial; d == nil || !strings.Contains(d.Error(), want) {
			t.Errorf("%v, expected %q", d, want)
		}
	}
}

// T48, A23: no response tells how close a guess was, which kind of token is missing, or the
// length of the config.
func TestAttack_T48_WrongTokensReadAlike(t *testing.T) {
	seen := map[string]bool{}
	for _, presented := range []string{wrong, current[:44], previous, attested + "x", "x", strings.Repeat("A", 4000)} {
		for _, listed := range []bool{true, false} {
			f := newProvisioned(t)
			f.policy.ProvisioningToken, f.policy.OnlyProvisioningToken = listed, listed
			f.Now = func() time.Time { return graceEnds }
			res := f.do(t, get("/config/worker", presented))
			seen[fmt.Sprint(res.StatusCode, res.Header, body(t, res))] = true
		}
	}
	if len(seen) != 1 {
		t.Errorf("%d different answers: %v", len(seen), seen)
	}
}

// A21: neither line nor decision nor upstream receives a token, not even a wrong one.
func TestAttack_T46_TheProvisioningTokenIsNeverPrinted(t *testing.T) {
	for _, presented := range []string{current, previous, wrong} {
		for _, mode := range []Mode{Enforce, Audit, Off} {
			for _, path := range []string{"/config/worker", "/config/worker?token=" + presented, "/config/" + presented,
				"/config/worker;token=" + presented} {
				f := newProvisioned(t)
				f.policy.Mode, f.policy.URLParameter = mode, true
				for _, header := range []string{presented, ""} {
					res := f.do(t, get(path, header))
					out := fmt.Sprint(f.lines, res.Header, body(t, res))
					for _, d := range f.decisions {
						out += fmt.Sprintf("%+v %v", d, d.Denial)
					}
					for _, r := range f.upstream {
						out += fmt.Sprint(r.URL, r.RequestURI, r.Header)
					}
					if strings.Contains(out, presented[:30]) {
						t.Errorf("%v %s: the token got out: %s", mode, path, out)
					}
				}
			}
		}
	}
}

func FuzzParameter(f *testing.F) {
	for _, q := range []string{"token=a", "token", "token=%zz", "a=b&token=x+y/z=", "token=a&token=b", "%74oken=a",
		";token=a", "token=%00"} {
		f.Add(q)
	}
	f.Fuzz(func(t *testing.T, query string) {
		value, ok, err := parameter(&url.URL{RawQuery: query})
		if err != nil && reason.From(err).Code != reason.TokenInvalid {
			t.Fatalf("%q: %v", query, err)
		}
		if ok && err == nil && (len(value) == 0 || strings.ContainsFunc(string(value), notToken68)) ||
			!ok && (err != nil || value != nil) {
			t.Fatalf("%q became %q %t %v", query, value, ok, err)
		}
	})
}
