// SPDX-License-Identifier: Apache-2.0

package approver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// Decide decides a request. First it checks
//
//   - signer: one of the kubelet's two signers, and the request is undecided (else Ignore)
//   - requester: the node bootstrapper or the verifier for a client certificate, a node for
//     a serving certificate (else Ignore)
//   - request: it parses, and is not larger than a kubelet's (CSRMalformed)
//
// and then what [run.client] or [run.serving] list. If a check fails with a final
// reason, the outcome is Refuse; with a temporary reason it is Retry.
func Decide(ctx context.Context, r *Request, w Cluster, c Config, now time.Time) *Decision {
	c = c.withDefaults()
	d := &Decision{Kind: r.Kind, Node: r.Node(), CredentialID: r.CredentialID, PublicKeySHA256: r.PublicKeySHA256}
	x := &run{Decision: d, ctx: ctx, r: r, w: w, c: c, now: now}
	err := x.decide()
	var ignored *notOurs
	switch {
	case err == nil:
		d.Outcome = Approve
	case errors.As(err, &ignored):
		d.Outcome = Ignore
	default:
		d.Denial = reason.From(err)
		switch {
		case x.contradicts:
			d.Outcome = Deny
		case d.Denial.Code.Info().Temporary:
			d.Outcome = Retry
		default:
			d.Outcome = Refuse
		}
	}
	return d
}

func (c Config) withDefaults() Config {
	c.MaxMachineAge = cmp.Or(c.MaxMachineAge, defaultMachineAge)
	c.PendingPerMachine = cmp.Or(c.PendingPerMachine, defaultPending)
	c.ServiceAccount = cmp.Or(c.ServiceAccount, defaultBootstrap)
	return c
}

// run is the state of one decision.
type run struct {
	*Decision
	ctx context.Context
	r   *Request
	w   Cluster
	c   Config
	now time.Time
	// record has the request's credential; nil until it is found.
	record *v1alpha1.MachineAttestation
	// found are the Machines with the node's name. records are the records of the machines
	// of a serving certificate's node.
	found   []Machine
	records []*v1alpha1.MachineAttestation
	// contradicts reports that the request contradicts the record whose credential made it.
	contradicts bool
}

// notOurs is the reason to ignore a request.
type notOurs struct{ why string }

func (e *notOurs) Error() string { return e.why }

func ignore(format string, a ...any) error { return &notOurs{fmt.Sprintf(format, a...)} }

// check adds a check. If err is not nil, the check failed, and check returns err.
func (x *run) check(name string, err error, format string, a ...any) error {
	if err == nil {
		x.Checks = append(x.Checks, Check{name, Passed, fmt.Sprintf(format, a...)})
		return nil
	}
	x.Checks = append(x.Checks, Check{name, Failed, detail(err)})
	return err
}

func (x *run) skip(name, format string, a ...any) {
	x.Checks = append(x.Checks, Check{name, Skipped, fmt.Sprintf(format, a...)})
}

// detail returns the text of an error for one line, without the code of a denial.
func detail(err error) string {
	var d *reason.Denial
	if !errors.As(err, &d) {
		return err.Error()
	}
	return strings.TrimPrefix(d.Error(), d.Code.String()+": ")
}

// unread returns the denial if the cluster cannot be read.
func unread(err error, format string, a ...any) error {
	return reason.Wrap(reason.StoreUnavailable, err, format, a...)
}

func (x *run) decide() error {
	r := x.r
	var err error
	switch {
	case r.Kind == "":
		err = ignore("%.80q is not one of the kubelet's signers", r.Signer)
	case r.Decided:
		err = ignore("the request is already approved, denied or failed")
	}
	if err := x.check("signer", err, "%s", r.Signer); err != nil {
		return err
	}
	switch r.Kind {
	case Client:
		x.Attested = x.c.issues(r)
		if _, ok := x.c.bootstrapper(r.Username); !ok && !x.Attested {
			err = ignore("%.253q is not the node bootstrapper", r.Username)
		}
	case Serving:
		if !slices.Contains(r.Groups, nodesGroup) {
			err = ignore("%.253q is not in the group %s", r.Username, nodesGroup)
		}
	}
	if err := x.check("requester", err, "%s", r.Username); err != nil {
		return err
	}
	if r.CSR == nil {
		err = r.Malformed
	}
	if err := x.check("request", err, "public key sha256:%s", r.PublicKeySHA256); err != nil {
		return err
	}
	if r.Kind == Client {
		return x.client()
	}
	return x.serving()
}

// limit limits the number of pending requests. With attestation each machine and each
// node has its own limit, so that none can block another. Without attestation, all share
// the stock approver's limit.
func (x *run) limit() error {
	l, err := x.w.Load(x.ctx, x.r, x.record)
	if err != nil {
		return x.check("limit", unread(err, "count the pending requests"), "")
	}
	n, most, whose := l.Pending, l.Limit(), "all machines"
	if x.c.Attestation {
		n, most, whose = l.Own, x.c.PendingPerMachine, "this machine"
	}
	if n > most {
		err = reason.Deny(reason.CSRLimit, "%d requests of %s are pending since less than %v; at most %d may be", n, whose,
			Window, most)
	}
	return x.check("limit", err, "%d of at most %d requests of %s are pending", n, most, whose)
}

// Usages of the two certificates. Key encipherment is for RSA keys, but kubelets also
// request it for other keys.
var (
	clientUsages  = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}
	servingUsages = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
)

// usages checks that the usages are exactly those in want, with or without key
// encipherment.
func (x *run) usages(want []certificatesv1.KeyUsage) error {
	got := slices.Sorted(slices.Values(x.r.Usages))
	for _, w := range [][]certificatesv1.KeyUsage{want,
		append([]certificatesv1.KeyUsage{certificatesv1.UsageKeyEncipherment}, want...)} {
		if slices.Equal(got, slices.Sorted(slices.Values(w))) {
			return nil
		}
	}
	return reason.Deny(reason.CSRContent, "the usages are %.80q; they must be %q, optionally with key encipherment",
		few(got), want)
}

// few returns the first entries of a list, for a message.
func few[T any](list []T) []T { return list[:min(len(list), 10)] }

// subject checks what both certificates have in common: O is system:nodes, CN is a
// node's name, and there are no other attributes. A name that no Node can have would
// pass the check that there is no such Node.
func (x *run) subject() error {
	s := x.r.CSR.Subject
	switch {
	case !slices.Equal(s.Organization, []string{nodesGroup}):
		return reason.Deny(reason.CSRContent, "the organizations are %.253q; only %s is allowed", few(s.Organization),
			nodesGroup)
	case len(validation.IsDNS1123Subdomain(x.Node)) > 0:
		return reason.Deny(reason.CSRContent, "the common name is %.253q; it must be %s followed by the name of a Node",
			s.CommonName, nodePrefix)
	case len(s.Names) != 2:
		return reason.Deny(reason.CSRContent, "the subject has %d attributes; only O and CN are allowed", len(s.Names))
	case len(x.r.CSR.EmailAddresses) > 0 || len(x.r.CSR.URIs) > 0:
		return reason.Deny(reason.CSRContent, "the request has email addresses or URIs, which a node does not have")
	}
	return nil
}
