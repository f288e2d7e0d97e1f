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

// Decide decides a request. It checks, in this order,
//
//   - signer: one of the kubelet's two, and nobody decided yet (else Ignore)
//   - requester: the node bootstrapper for a client certificate, a node for a
//     serving certificate (else Ignore)
//   - request: it parses, and is not larger than a kubelet's (CSRMalformed)
//
// and then what [run.client] or [run.serving] list. The first check that fails
// decides: with a final reason to Refuse, with a temporary one to Retry.
func Decide(ctx context.Context, r *Request, w World, c Config, now time.Time) *Decision {
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

// run is one decision while it is made.
type run struct {
	*Decision
	ctx context.Context
	r   *Request
	w   World
	c   Config
	now time.Time
	// record that has the request's credential; nil while none was found.
	record *v1alpha1.MachineAttestation
	// found are the Machines with the node's name, and records what was recorded of the
	// machines of a serving certificate's node.
	found   []Machine
	records []*v1alpha1.MachineAttestation
	// contradicts: the request contradicts the record whose credential made it.
	contradicts bool
}

// notOurs is why a request is ignored.
type notOurs struct{ why string }

func (e *notOurs) Error() string { return e.why }

func ignore(format string, a ...any) error { return &notOurs{fmt.Sprintf(format, a...)} }

// check notes one line. With an error the check failed, and the error is returned.
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

// detail is an error for one line: of a denial, what its code does not say.
func detail(err error) string {
	var d *reason.Denial
	if !errors.As(err, &d) {
		return err.Error()
	}
	return strings.TrimPrefix(d.Error(), d.Code.String()+": ")
}

// unread is the answer while the world does not answer.
func unread(err error, format string, a ...any) error {
	return reason.Wrap(reason.StoreUnavailable, err, format, a...)
}

func (x *run) decide() error {
	r := x.r
	var err error
	switch {
	case r.Kind == "":
		err = ignore("%.80q is not a signer of the kubelet's", r.Signer)
	case r.Decided:
		err = ignore("it was approved or denied, or has failed")
	}
	if err := x.check("signer", err, "%s", r.Signer); err != nil {
		return err
	}
	switch r.Kind {
	case Client:
		if _, ok := x.c.bootstrapper(r.Username); !ok {
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

// limit bounds what waits. With attestation each machine, and each node, has a
// limit of its own, so that nobody can stop anyone else; without there is the stock
// approver's limit for all together.
func (x *run) limit() error {
	l, err := x.w.Load(x.ctx, x.r, x.record)
	if err != nil {
		return x.check("limit", unread(err, "counting what waits"), "")
	}
	n, most, whose := l.Pending, l.Limit(), "all machines"
	if x.c.Attestation {
		n, most, whose = l.Own, x.c.PendingPerMachine, "this machine"
	}
	if n > most {
		err = reason.Deny(reason.CSRLimit, "%d requests of %s wait since less than %v, at most %d may", n, whose,
			Window, most)
	}
	return x.check("limit", err, "%d of at most %d requests of %s wait", n, most, whose)
}

// Usages of the two certificates; key encipherment is for RSA keys, and kubelets
// ask for it with others, too.
var (
	clientUsages  = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}
	servingUsages = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
)

// usages compares the usages asked for with those that belong there: these, with or
// without key encipherment, each once.
func (x *run) usages(want []certificatesv1.KeyUsage) error {
	got := slices.Sorted(slices.Values(x.r.Usages))
	for _, w := range [][]certificatesv1.KeyUsage{want,
		append([]certificatesv1.KeyUsage{certificatesv1.UsageKeyEncipherment}, want...)} {
		if slices.Equal(got, slices.Sorted(slices.Values(w))) {
			return nil
		}
	}
	return reason.Deny(reason.CSRContent, "the usages are %.20q; they must be %q, and may be key encipherment", got, want)
}

// subject is what both certificates have in common: O is system:nodes, CN a node's
// name, and there is nothing else. A name that no Node can have would pass the check
// that there is no such Node.
func (x *run) subject() error {
	s := x.r.CSR.Subject
	switch {
	case !slices.Equal(s.Organization, []string{nodesGroup}):
		return reason.Deny(reason.CSRContent, "the organisations are %.10q; %s alone belongs there", s.Organization,
			nodesGroup)
	case len(validation.IsDNS1123Subdomain(x.Node)) > 0:
		return reason.Deny(reason.CSRContent, "the common name is %.253q; it must be %s and the name of a Node", s.CommonName,
			nodePrefix)
	case len(s.Names) != 2:
		return reason.Deny(reason.CSRContent, "the subject has %d attributes; O and CN alone belong there", len(s.Names))
	case len(x.r.CSR.EmailAddresses) > 0 || len(x.r.CSR.URIs) > 0:
		return reason.Deny(reason.CSRContent, "the request has email addresses or URIs among its names; neither is a node's")
	}
	return nil
}
