// SPDX-License-Identifier: Apache-2.0

package rehearse

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/pointer"
	"github.com/mcs-attest/mcs-attest/pkg/policy"
	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
)

// expiresSoon is how long before its end a CA is reported.
const expiresSoon = 30 * 24 * time.Hour

// pointers checks pointer configs. The Node checks the rest: whether it reaches the verifier with them.
type pointers struct {
	origins  []string
	policies *policy.Set // nil if they cannot be read
	tokens   provisioning.Tokens
	hasToken bool
	unread   []string // what could not be read, for a warning
	now      time.Time
}

// settings are what a cluster or a folder has for its verifier.
type settings interface {
	Policies(context.Context) (*policy.Set, error)
	Provisioning(context.Context) (provisioning.Tokens, bool, error)
}

func newPointers(ctx context.Context, s settings, origins []string) *pointers {
	p := &pointers{origins: origins, now: time.Now()}
	var err error
	if p.policies, err = s.Policies(ctx); err != nil {
		p.policies, p.unread = nil, append(p.unread, fmt.Sprintf("the policies were not checked: %v", err))
	}
	if p.tokens, p.hasToken, err = s.Provisioning(ctx); err != nil {
		p.hasToken, p.unread = false, append(p.unread, fmt.Sprintf("the provisioning token was not checked: %v", err))
	}
	return p
}

// Prepare checks the pointer config of a folder's machine, and returns it for the node: without its tokens.
func Prepare(ctx context.Context, f *operator.Folder, config secret.Bytes) (secret.Bytes, []string, error) {
	p := newPointers(ctx, f, f.Config.Origins)
	denied, warnings := p.check(config.Expose(), pointer.UserData{})
	if denied != nil {
		return secret.Bytes{}, nil, hint.New(fmt.Errorf("would fail: %s: %s", denied.code, denied.message), "%s", denied.fix)
	}
	config, err := p.withoutTokens(config)
	return config, warnings, err
}

// pointerConfig returns the pointer config of a machine, without its tokens. If the machine could not boot with it, it
// sets the result.
func (r *runner) pointerConfig(ctx context.Context, m operator.Rehearsable, out *Result) (secret.Bytes, error) {
	config, meta, err := r.Cluster.UserData(ctx, m)
	if err != nil {
		return secret.Bytes{}, err
	}
	if config.Empty() {
		config = r.Pointer
	}
	if config.Empty() {
		return secret.Bytes{}, hint.New(errors.New("its Machine names no Secret with user data"),
			"name the pointer config with which it would boot by --pointer")
	}
	denied, warnings := r.pointers.check(config.Expose(), meta)
	out.Warnings = append(out.Warnings, warnings...)
	if denied != nil {
		out.failed(denied.code.String(), denied.message, denied.fix)
		return secret.Bytes{}, nil
	}
	return r.pointers.withoutTokens(config)
}

// withoutTokens removes the provisioning token and every other credential of a source. A node that runs must not get
// the token: it may have been rotated because of that node.
func (p *pointers) withoutTokens(config secret.Bytes) (secret.Bytes, error) {
	known := slices.DeleteFunc([]secret.Bytes{p.tokens.Current, p.tokens.Previous}, secret.Bytes.Empty)
	clean, _, err := pointer.Scrub(config.Expose(), known...)
	if err != nil {
		return secret.Bytes{}, hint.New(fmt.Errorf("remove the provisioning token from the pointer config: %w", err),
			"the token belongs only in the source of the pointer config")
	}
	return secret.New(clean), nil
}

// denied is why a machine could not boot with a pointer config.
type denied struct {
	code         reason.Code
	message, fix string
}

// check returns why a new machine with this user data could not boot, or what an administrator should know of it. It
// checks the following, in this order:
//
//   - the user data is an Ignition config of a specification that the agent reads;
//   - one of its sources refers to this verifier, by https;
//   - its CA is valid, and stays valid for 30 days;
//   - where the policy of the pool lists the provisioning token, the source presents the current one. If it does not,
//     the check also reports a program that keeps the verifier from adding it.
func (p *pointers) check(raw []byte, meta pointer.UserData) (*denied, []string) {
	name := "the pointer config"
	if meta.Name != "" {
		name = "the pointer config in the Secret " + meta.Name
	}
	c, err := pointer.Parse(raw)
	if err != nil {
		return &denied{reason.Malformed, fmt.Sprintf("%s: %v", name, err),
			"Restore the user data. docs/platforms.md describes pointer configs."}, nil
	}
	var ours []pointer.Source
	var all, plain []string
	for _, s := range c.Sources() {
		all = append(all, s.Origin)
		switch {
		case slices.Contains(p.origins, s.Origin):
			ours = append(ours, s)
		case !s.Secure:
			plain = append(plain, s.Origin)
		}
	}
	switch {
	case len(ours) > 0:
	case len(plain) > 0:
		return &denied{reason.Plaintext, fmt.Sprintf("%s refers to %s, without TLS", name, plain[0]),
			fmt.Sprintf("Change the source to %s, and add the CA of the Machine Config Server.", list(p.origins))}, nil
	default:
		return &denied{reason.OriginUnknown, fmt.Sprintf("%s refers to %s, and the verifier serves %s", name,
			list(all), list(p.origins)), reason.OriginUnknown.Info().Hint}, nil
	}
	warnings := append(slices.Clone(p.unread), p.authorities(name, raw)...)
	for _, s := range ours {
		denied, more := p.token(name, c, s, meta)
		if warnings = append(warnings, more...); denied != nil {
			return denied, warnings
		}
	}
	return nil, warnings
}

// authorities reports CAs that are not valid, or not for long. Another CA may be valid, so it is no denial.
func (p *pointers) authorities(name string, raw []byte) (warnings []string) {
	all, err := pointer.Authorities(raw)
	if err != nil {
		return []string{fmt.Sprintf("the CA of %s was not checked: %v", name, err)}
	}
	for _, c := range all {
		end := c.NotAfter.UTC().Format(time.DateOnly)
		switch left := c.NotAfter.Sub(p.now); {
		case left <= 0:
			warnings = append(warnings, fmt.Sprintf("a CA of %s expired on %s", name, end))
		case left < expiresSoon:
			warnings = append(warnings, fmt.Sprintf("a CA of %s expires on %s; 'certs status' shows the next step", name, end))
		}
	}
	return warnings
}

// token checks a source whose pool's policy lists the provisioning token. The node does not prove the token, so it is
// a denial if every alternative of the policy has it.
func (p *pointers) token(name string, c *pointer.Config, s pointer.Source, meta pointer.UserData) (*denied, []string) {
	if p.policies == nil {
		return nil, nil
	}
	of, err := p.policies.For(s.Pool)
	if err != nil || !slices.Contains(of.Kinds(), evidence.ProvisioningToken) || !p.hasToken {
		return nil, nil
	}
	token, _ := c.Presented(s.Origin, s.Pool)
	const remedy = "'token provisioning status' and 'token provisioning pointer' help"
	switch p.tokens.Check(p.now, token.Expose()) {
	case provisioning.Current:
		return nil, nil
	case provisioning.Previous:
		return nil, []string{fmt.Sprintf("%s has the previous provisioning token, which expires; %s", name, remedy)}
	}
	what := "another provisioning token than the cluster's"
	if token.Empty() {
		what = "no provisioning token"
	}
	text := fmt.Sprintf("%s has %s, and the policy of pool %s lists it", name, what, s.Pool)
	if why := meta.Managed(); meta.Name != "" && why != "" {
		text += fmt.Sprintf("; the verifier does not add the token to that Secret: %s", why)
	}
	if !slices.ContainsFunc(of.Alternatives, func(all []evidence.Kind) bool {
		return !slices.Contains(all, evidence.ProvisioningToken)
	}) {
		return &denied{reason.ProvisioningTokenInvalid, text, reason.ProvisioningTokenInvalid.Info().Hint}, nil
	}
	return nil, []string{text + "; " + remedy}
}

func list(all []string) string {
	if len(all) == 0 {
		return "no Machine Config Server"
	}
	return strings.Join(slices.Compact(slices.Sorted(slices.Values(all))), " and ")
}
