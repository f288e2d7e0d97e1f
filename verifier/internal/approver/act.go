package approver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/approver"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
)

// ConditionReason is the reason of the conditions Approved and Denied that are ours.
const ConditionReason = "mcs-attest"

// act does what follows from a decision, and says when to look at the request again.
func (a *Approver) act(ctx context.Context, csr *certificatesv1.CertificateSigningRequest, d *approver.Decision, now time.Time) time.Duration {
	if d.Outcome == approver.Approve {
		if err := a.approve(ctx, csr, d, now); err != nil {
			a.notApproved(d, err)
		}
	}
	again := never
	switch d.Outcome {
	case approver.Retry:
		again = later
	case approver.Refuse:
		a.recordRefusal(ctx, d, now)
		// A credential is on its record before it is served, but the record may not
		// have been seen yet, and may come back.
		if d.Denial.Code == reason.CSRCredential && !d.Proven && d.CredentialID != "" {
			again = oldPause
			if now.Sub(csr.CreationTimestamp.Time) < young {
				again = later
			}
		}
	case approver.Deny:
		a.recordRefusal(ctx, d, now)
		if err := a.deny(ctx, csr, d, now); err != nil {
			a.o.Log.Debug("a certificate signing request could not be denied", "request", csr.Name, "error", err)
			again = later
		}
	}
	a.tell(ctx, csr, d)
	return again
}

// notApproved makes of a decision what came of it.
func (a *Approver) notApproved(d *approver.Decision, err error) {
	var denial *reason.Denial
	if !errors.As(err, &denial) {
		denial = reason.From(reason.Wrap(reason.StoreUnavailable, err, "approve"))
	}
	d.Denial, d.Outcome = denial, approver.Retry
	if !denial.Code.Temporary() {
		d.Outcome = approver.Refuse
	}
}

// approve approves a request; a client certificate only once it is on the record.
func (a *Approver) approve(ctx context.Context, csr *certificatesv1.CertificateSigningRequest, d *approver.Decision, now time.Time) error {
	message := "This CSR was approved by mcs-attest: "
	switch {
	case d.Kind == approver.Client && a.attested:
		if d.RecordUID == "" || !d.Proven {
			return reason.Deny(reason.CSRCredential, "nothing proves whose request it is")
		}
		if d.Replaces != "" {
			if err := a.withdraw(ctx, d, now); err != nil {
				return err
			}
		}
		err := a.o.Records.Update(ctx, d.RecordUID, func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
			return record.Reapprove(rec, d.Replaces, d.Certificate(csr.Name), now)
		})
		if err != nil {
			return err
		}
		message += fmt.Sprintf("%s attested, and made it with its own credential", a.machine(d))
	default:
		message += "it is as the kubelet of " + a.machine(d) + " makes it"
	}
	return a.decideIt(ctx, csr, certificatesv1.CertificateApproved, message, now)
}

func (a *Approver) machine(d *approver.Decision) string {
	if d.Machine == nil {
		return "node " + audit.Clean(d.Node)
	}
	return "machine " + d.Machine.String()
}

// deny denies a request that proves whose it is, and asks for what is not.
func (a *Approver) deny(ctx context.Context, csr *certificatesv1.CertificateSigningRequest, d *approver.Decision, now time.Time) error {
	return a.decideIt(ctx, csr, certificatesv1.CertificateDenied, audit.Clean(d.Denial.Error()), now)
}

// decideIt writes a condition into the request as it was read.
func (a *Approver) decideIt(ctx context.Context, csr *certificatesv1.CertificateSigningRequest, condition certificatesv1.RequestConditionType, message string, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, a.o.Timeout)
	defer cancel()
	csr = csr.DeepCopy()
	csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: condition, Status: corev1.ConditionTrue, Reason: ConditionReason, Message: message, LastUpdateTime: metav1.NewTime(now),
	})
	_, err := a.o.Client.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, csr.Name, csr, metav1.UpdateOptions{})
	if kerrors.IsNotFound(err) {
		return nil // nobody wants it any more
	}
	if err != nil {
		return fmt.Errorf("write condition %s of request %s: %w", condition, csr.Name, err)
	}
	return nil
}

// recordRefusal notes a refusal on the record of the machine that made the request,
// which an Event tells of. Without proof that it did nothing is written.
func (a *Approver) recordRefusal(ctx context.Context, d *approver.Decision, now time.Time) {
	if !d.Proven || d.RecordUID == "" || d.Denial == nil || !a.writes.allow(d.RecordUID, time.Now()) {
		return
	}
	err := a.o.Records.Update(ctx, d.RecordUID, func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
		return record.Refused(rec, d.Denial, now), nil
	})
	if err != nil {
		a.o.Log.Debug("a refused certificate signing request was not recorded", "machine_uid", d.RecordUID, "error", err)
	}
}

// approvedByOthers takes a request with a machine's own credential that somebody
// else approved for that machine's first: what joined once has joined.
func (a *Approver) approvedByOthers(ctx context.Context, csr *certificatesv1.CertificateSigningRequest) time.Duration {
	c := approval(csr)
	if c == nil || c.Reason == ConditionReason || csr.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName {
		return never
	}
	r := approver.FromCSR(csr)
	if a.attested && a.decide.Bootstrapper(r.Username) {
		a.saw(csr.Name, c)
	}
	if r.CredentialID == "" || r.PublicKeySHA256 == "" {
		return never
	}
	uid, ok := a.o.Machines.ByCredential(r.CredentialID)
	if !ok {
		if a.o.Now().Sub(csr.CreationTimestamp.Time) < young {
			return later
		}
		return never
	}
	err := a.o.Records.Update(ctx, uid, func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
		return record.Approve(rec, v1alpha1.CertificateStatus{
			Node: r.Node(), PublicKeySHA256: r.PublicKeySHA256, Request: csr.Name, CredentialID: r.CredentialID,
		}, a.o.Now())
	})
	var denial *reason.Denial
	switch {
	case err == nil:
		a.o.Log.Info("a certificate signing request with a machine's own credential was approved by somebody else", "request", csr.Name, "machine_uid", uid, "by", audit.Clean(c.Reason))
		return never
	case !errors.As(err, &denial) || denial.Code.Temporary() && denial.Code != reason.Quarantined:
		return later
	case denial.Code == reason.CSRKeyChanged || denial.Code == reason.Quarantined:
		// What has been given cannot be taken back here; somebody should know.
		a.o.Log.Warn("somebody else approved a certificate signing request that the verifier would not", "request", csr.Name, "machine_uid", uid, "error", err)
		a.recordRefusal(ctx, &approver.Decision{Proven: true, RecordUID: uid, Denial: reason.From(reason.Wrap(denial.Code, err, "%s was approved by somebody else (%s)", csr.Name, audit.Clean(c.Reason)))}, a.o.Now())
	}
	return never // it joined before, or its credential has ended
}

// byHand is the reason that kubectl gives an approval.
const byHand = "KubectlApprove"

// remembered is how long an approval by another approver is reported.
const remembered = time.Hour

// foreign is an approval by another approver.
type foreign struct {
	request, by string
	at          time.Time
}

// saw notes an approval that another approver gave. It asks for no attestation, whatever
// its switch says; a person who approves by hand knows what they do.
func (a *Approver) saw(request string, c *certificatesv1.CertificateSigningRequestCondition) {
	if c.Reason == byHand {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if at := c.LastTransitionTime.Time; at.After(a.foreign.at) {
		a.foreign = foreign{request, audit.Clean(c.Reason), at}
	}
}

// tell counts a decision, and has the audit log say what is new.
func (a *Approver) tell(ctx context.Context, csr *certificatesv1.CertificateSigningRequest, d *approver.Decision) {
	code := ""
	if d.Denial != nil {
		code = d.Denial.Code.String()
	}
	outcome := strings.ToLower(string(d.Outcome))
	a.metrics.decisions.WithLabelValues(label(d.Kind), outcome, code).Inc()
	if d.Outcome == approver.Ignore {
		return
	}
	a.mu.Lock()
	news := a.said[csr.Name] != outcome+code
	a.said[csr.Name] = outcome + code
	a.mu.Unlock()
	if !news {
		return
	}
	name := ""
	if d.Machine != nil {
		name = d.Machine.String()
	}
	a.audit.Write(ctx, audit.Decision{
		Event: "csr", Outcome: outcome, Denial: d.Denial, CorrelationID: string(csr.UID), Machine: name,
		Proven: d.Outcome == approver.Approve || d.Proven && a.writes.allow("log:"+d.RecordUID, time.Now()),
		Extra: []slog.Attr{
			slog.String("kind", label(d.Kind)), slog.String("request", csr.Name), slog.String("node", audit.Clean(d.Node)),
			slog.String("requester", audit.Clean(csr.Spec.Username)), slog.String("credential_id", audit.Clean(d.CredentialID)),
			slog.String("public_key_sha256", d.PublicKeySHA256),
		},
	})
}

func label(k approver.Kind) string { return cmp.Or(strings.ToLower(string(k)), "none") }

// budget bounds what one machine has the verifier write: whoever has its credential
// can make requests without end.
type budget struct {
	mu  *sync.Mutex
	of  map[string]*rate.Limiter
	max int
}

const (
	refusalsEvery = time.Minute
	refusalsBurst = 10
)

func newBudget() budget { return budget{new(sync.Mutex), map[string]*rate.Limiter{}, 4096} }

func (b budget) allow(of string, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.of[of]
	if l == nil {
		if len(b.of) >= b.max {
			clear(b.of)
		}
		l = rate.NewLimiter(rate.Every(refusalsEvery), refusalsBurst)
		b.of[of] = l
	}
	return l.AllowN(now, 1)
}
