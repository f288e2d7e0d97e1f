// SPDX-License-Identifier: Apache-2.0

package awssts_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/awssts"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/awssts/attester"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/awssts/request"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/aws"
)

var now = time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)

// relay is the emulated STS without a network.
type relay struct {
	api   http.Handler
	calls int
}

func (r *relay) GetCallerIdentity(ctx context.Context, q awssts.Request) (int, string, []byte, error) {
	r.calls++
	h := httptest.NewRequestWithContext(ctx, http.MethodPost, "https://"+q.Host+"/", strings.NewReader(request.Body))
	for name, value := range q.Headers {
		h.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	r.api.ServeHTTP(w, h)
	return w.Code, w.Header().Get("Content-Type"), w.Body.Bytes(), nil
}

// canned is a caller with a fixed answer.
type canned struct {
	status      int
	contentType string
	body        string
	err         error
}

func (s canned) GetCallerIdentity(context.Context, awssts.Request) (int, string, []byte, error) {
	return s.status, s.contentType, []byte(s.body), s.err
}

// setup is a valid machine and its verifier.
type setup struct {
	t        testing.TB
	cloud    *aws.Cloud
	instance aws.Instance
	sts      *relay
	verifier *awssts.Verifier
	binding  evidence.Binding
}

func newSetup(t testing.TB) *setup {
	cloud := aws.New(aws.Options{Now: func() time.Time { return now }})
	w := &setup{t: t, cloud: cloud, instance: cloud.Add(aws.Instance{Role: "demo-worker-role"}),
		sts: &relay{api: cloud.API()}}
	w.verifier = &awssts.Verifier{Caller: w.sts, Accounts: []string{"123456789012"},
		Regions: []string{"eu-central-1", "cn-north-1"}, Roles: []string{"demo-worker-role"}}
	w.binding = evidence.Binding{Transcript: [32]byte{1, 2, 3}, Origin: "https://verifier.example:22625"}
	return w
}

func credentials(c aws.Credentials) sdk.Credentials {
	return sdk.Credentials{AccessKeyID: c.AccessKeyID, SecretAccessKey: c.SecretAccessKey, SessionToken: c.SessionToken}
}

func (w *setup) sign(c aws.Credentials) []byte {
	w.t.Helper()
	raw, err := attester.Document(w.t.Context(), credentials(c), "eu-central-1", w.binding.Transcript, now)
	if err != nil {
		w.t.Fatal(err)
	}
	return raw
}

// own returns the instance's own document.
func (w *setup) own() []byte {
	c, _ := w.cloud.Credentials(w.instance.ID)
	return w.sign(c)
}

func (w *setup) present(raw []byte) (evidence.Statement, error) {
	return w.presentFor(raw, w.instance.ProviderID())
}

func (w *setup) presentFor(raw []byte, providerID string) (evidence.Statement, error) {
	claim, err := w.verifier.Verify(w.t.Context(), evidence.Document{Kind: evidence.AWSSTS, Raw: raw}, w.binding, now)
	if err != nil {
		return evidence.Statement{}, err
	}
	if s := claim.Statement(); s.ProviderID != "" || s.InstanceID != "" || !s.Bound {
		w.t.Errorf("before a request, the statement is %+v", s)
	}
	return claim.Confirm(w.t.Context(), evidence.Candidate{ProviderID: providerID})
}

func refused(t *testing.T, err error, want reason.Code) {
	t.Helper()
	if d := reason.From(err); d == nil || d.Code != want {
		t.Errorf("got %v, want %v", err, want)
	}
}

func TestVerify_AcceptsAnInstancesOwnDocument(t *testing.T) {
	w := newSetup(t)
	s, err := w.present(w.own())
	if err != nil {
		t.Fatal(err)
	}
	if s.ProviderID != w.instance.ProviderID() || s.InstanceID != "aws:"+w.instance.ID || !s.Bound ||
		s.Kind != evidence.AWSSTS {
		t.Errorf("%+v", s)
	}
	if s.Summary["account"] != "123456789012" || s.Summary["role"] != "demo-worker-role" ||
		s.Summary["roleID"] != w.instance.RoleID {
		t.Errorf("%v", s.Summary)
	}
	if w.sts.calls != 1 {
		t.Errorf("%d calls", w.sts.calls)
	}
}

func TestVerify_AcceptsAnInstanceInChina(t *testing.T) {
	w := newSetup(t)
	w.instance = w.cloud.Add(aws.Instance{Role: "demo-worker-role", Zone: "cn-north-1b"})
	c, _ := w.cloud.Credentials(w.instance.ID)
	raw, err := attester.Document(t.Context(), credentials(c), "cn-north-1", w.binding.Transcript, now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.present(raw); err != nil {
		t.Error(err)
	}
}

func TestConfirm_DeniesTheDocumentOfAnotherMachine(t *testing.T) {
	w := newSetup(t)
	raw := w.own()
	if _, err := w.present(raw); err != nil {
		t.Fatal(err)
	}
	for name, id := range map[string]string{
		"another instance":           "aws:///eu-central-1a/i-0ffffffffffffffff",
		"another region":             "aws:///eu-west-1a/" + w.instance.ID,
		"a region whose name begins": "aws:///eu-central-12a/" + w.instance.ID,
		"no zone":                    "aws:////" + w.instance.ID,
		"only the end of a zone":     "aws:///a/" + w.instance.ID,
		"no scheme":                  "eu-central-1a/" + w.instance.ID,
		"another cloud":              "gce://p/z/" + w.instance.ID,
		"nothing":                    "",
		"a path too many":            w.instance.ProviderID() + "/",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := w.presentFor(raw, id)
			refused(t, err, reason.EvidenceDisagrees)
		})
	}
}

func TestConfirm_AcceptsOnlyConfiguredSigners(t *testing.T) {
	w := newSetup(t)
	if _, err := w.present(w.own()); err != nil {
		t.Fatal(err)
	}
	neighbor := w.cloud.Add(aws.Instance{Role: "demo-worker-role"})
	ofNeighbor, _ := w.cloud.Credentials(neighbor.ID)
	const account, role, roleID = "123456789012", "demo-worker-role", "AROAEXAMPLEEXAMPLEXX"
	id := w.instance.ID
	for _, c := range []struct {
		name   string
		signer aws.Credentials
		want   reason.Code
	}{
		{"a neighbor's credentials", ofNeighbor, reason.EvidenceDisagrees},
		{"the same role's name in another account", w.cloud.Session("999999999999", role, roleID, id, ""),
			reason.AccountNotAllowed},
		{"another role of the account", w.cloud.Session(account, "admin", roleID, id, ""), reason.InstanceUnacceptable},
		{"a role whose name begins like it", w.cloud.Session(account, role+"2", roleID, id, ""), reason.InstanceUnacceptable},
		{"a person's session of the role", w.cloud.Session(account, role, roleID, "mallory", ""), reason.DocumentInvalid},
		{"a session whose name holds the id", w.cloud.Session(account, role, roleID, id+"-x", ""), reason.DocumentInvalid},
		{"an IAM user", w.cloud.Session(account, role, "AIDAEXAMPLEEXAMPLEXX", id, "arn:aws:iam::123456789012:user/"+id),
			reason.DocumentInvalid},
		{"a user with the ARN of a role", w.cloud.Session(account, role, "AIDAEXAMPLEEXAMPLEXX", id, ""),
			reason.DocumentInvalid},
		{"a role's id with the ARN of a user", w.cloud.Session(account, role, roleID, id,
			"arn:aws:iam::123456789012:user/"+id), reason.DocumentInvalid},
		{"a federated user", w.cloud.Session(account, role, account, id, "arn:aws:sts::123456789012:federated-user/"+id),
			reason.DocumentInvalid},
		{"an ARN of another session", w.cloud.Session(account, role, roleID, id,
			"arn:aws:sts::123456789012:assumed-role/demo-worker-role/i-0ffffffffffffffff"), reason.DocumentInvalid},
		{"an ARN of another account", w.cloud.Session(account, role, roleID, id,
			"arn:aws:sts::999999999999:assumed-role/demo-worker-role/"+id), reason.DocumentInvalid},
		{"an ARN of another partition", w.cloud.Session(account, role, roleID,
			id, "arn:aws-cn:sts::123456789012:assumed-role/demo-worker-role/"+id), reason.DocumentInvalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := w.present(w.sign(c.signer))
			refused(t, err, c.want)
		})
	}
}

func TestMissingConfigurationDenies(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*awssts.Verifier)
		want   reason.Code
	}{
		"no role":         {func(v *awssts.Verifier) { v.Roles = nil }, reason.DocumentUntrusted},
		"no caller":       {func(v *awssts.Verifier) { v.Caller = nil }, reason.DocumentUntrusted},
		"no region":       {func(v *awssts.Verifier) { v.Regions = nil }, reason.AccountNotAllowed},
		"no account":      {func(v *awssts.Verifier) { v.Accounts = nil }, reason.AccountNotAllowed},
		"another region":  {func(v *awssts.Verifier) { v.Regions = []string{"eu-west-1"} }, reason.AccountNotAllowed},
		"another account": {func(v *awssts.Verifier) { v.Accounts = []string{"999999999999"} }, reason.AccountNotAllowed},
		"another role":    {func(v *awssts.Verifier) { v.Roles = []string{"master"} }, reason.InstanceUnacceptable},
		"a role of all case": {func(v *awssts.Verifier) { v.Roles = []string{"Demo-Worker-Role"} },
			reason.InstanceUnacceptable},
	} {
		t.Run(name, func(t *testing.T) {
			w := newSetup(t)
			raw := w.own()
			c.change(w.verifier)
			_, err := w.present(raw)
			refused(t, err, c.want)
		})
	}
}

func TestVerify_AcceptsAClockThatDiffersByMinutes(t *testing.T) {
	w := newSetup(t)
	c, _ := w.cloud.Credentials(w.instance.ID)
	for off, good := range map[time.Duration]bool{0: true, 15 * time.Minute: true, -15 * time.Minute: true,
		15*time.Minute + time.Second: false, -15*time.Minute - time.Second: false,
		16 * time.Minute: false, -16 * time.Minute: false, 30 * 365 * 24 * time.Hour: false} {
		raw, err := attester.Document(t.Context(), credentials(c), "eu-central-1", w.binding.Transcript, now.Add(off))
		if err != nil {
			t.Fatal(err)
		}
		calls := w.sts.calls
		_, err = w.present(raw)
		switch {
		case good && err != nil:
			t.Errorf("%s: %v", off, err)
		case !good: // the verifier's clock may be the wrong one
			refused(t, err, reason.Internal)
			if w.sts.calls != calls {
				t.Errorf("%s: STS was asked", off)
			}
		}
	}
}

func TestAttester_RejectsUnusableInput(t *testing.T) {
	c := sdk.Credentials{AccessKeyID: "AKIA", SecretAccessKey: "s", SessionToken: "t"}
	if _, err := attester.Document(t.Context(), c, "eu-central-1", [32]byte{}, now); err != nil {
		t.Fatal(err)
	}
	if _, err := attester.Document(t.Context(), c, "eu-central-1.evil", [32]byte{}, now); err == nil {
		t.Error("an invalid region was accepted")
	}
	c.SessionToken = ""
	if _, err := attester.Document(t.Context(), c, "eu-central-1", [32]byte{}, now); err == nil {
		t.Error("a user's key")
	}
}

func TestSTSFailuresAreTemporary(t *testing.T) {
	w := newSetup(t)
	raw := w.own()
	if _, err := w.present(raw); err != nil {
		t.Fatal(err)
	}
	failure := func(code string, message ...string) string {
		return `<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error><Type>Sender</Type><Code>` + code +
			`</Code><Message>` + strings.Join(message, "") + `</Message></Error><RequestId>r</RequestId></ErrorResponse>`
	}
	const xml = "text/xml"
	for name, c := range map[string]struct {
		canned
		want reason.Code
	}{
		"no answer": {canned{err: errors.New("connection refused")}, reason.ProviderUnavailable},
		"no budget": {canned{err: reason.Deny(reason.ProviderUnavailable, "budget")},
			reason.ProviderUnavailable},
		"a denial of the caller": {canned{err: reason.Deny(reason.InstanceNotFound, "none")},
			reason.InstanceNotFound},
		"a wrong signature and more": {canned{403, xml, failure("SignatureDoesNotMatch") + "x", nil},
			reason.ProviderUnavailable},
		"a wrong signature with status 399": {canned{399, xml, failure("SignatureDoesNotMatch"), nil},
			reason.ProviderUnavailable},
		"expired with status 399": {canned{399, xml, failure("ExpiredToken"), nil}, reason.ProviderUnavailable},
		"expired with status 500": {canned{500, xml, failure("ExpiredToken"), nil}, reason.ProviderUnavailable},
		"500":                     {canned{500, xml, failure("InternalFailure"), nil}, reason.ProviderUnavailable},
		"503":                     {canned{503, xml, failure("ServiceUnavailable"), nil}, reason.ProviderUnavailable},
		"429":                     {canned{429, xml, "", nil}, reason.ProviderUnavailable},
		"too many, which is 400":  {canned{400, xml, failure("Throttling"), nil}, reason.ProviderUnavailable},
		"a proxy's 403":           {canned{403, "text/html", "<html>no</html>", nil}, reason.ProviderUnavailable},
		"a proxy's 403 with content type XML": {canned{403, xml, "<html>SignatureDoesNotMatch</html>", nil},
			reason.ProviderUnavailable},
		"an endpoint policy": {canned{403, xml, failure("AccessDenied"), nil}, reason.ProviderUnavailable},
		"a redirect":         {canned{307, xml, "", nil}, reason.ProviderUnavailable},
		"a wrong signature with status 500": {canned{500, xml, failure("SignatureDoesNotMatch"), nil},
			reason.ProviderUnavailable},
		"an empty 200":           {canned{200, xml, "", nil}, reason.ProviderUnavailable},
		"the signature is wrong": {canned{403, xml, failure("SignatureDoesNotMatch"), nil}, reason.DocumentInvalid},
		"the time is wrong for STS": {canned{403, xml, failure("SignatureDoesNotMatch",
			"Signature expired: 20191029T154623Z is now earlier than 20191029T163344Z (20191029T164844Z - 15 min.)"), nil},
			reason.Internal},
		"the time is not yet valid for STS": {canned{403, xml, failure("SignatureDoesNotMatch",
			"Signature not yet current: 20191029T174623Z is still later than 20191029T170344Z (20191029T164844Z + 15 min.)"),
			nil}, reason.Internal},
		"the key is unknown (yet)": {canned{403, xml, failure("InvalidClientTokenId"), nil}, reason.ProviderUnavailable},
		"the token is unknown (yet)": {canned{403, xml, failure("UnrecognizedClientException"), nil},
			reason.ProviderUnavailable},
		"the signature is not whole":   {canned{400, xml, failure("IncompleteSignature"), nil}, reason.DocumentInvalid},
		"the credentials have expired": {canned{403, xml, failure("ExpiredToken"), nil}, reason.DocumentNotFresh},
		"the credentials have expired (400)": {canned{400, xml, failure("ExpiredTokenException"), nil},
			reason.DocumentNotFresh},
	} {
		t.Run(name, func(t *testing.T) {
			w.verifier.Caller = c.canned
			_, err := w.present(raw)
			refused(t, err, c.want)
		})
	}
}

func TestParseProviderID(t *testing.T) {
	const id = "/i-078517ca8a70a1dde"
	for zone, ok := range map[string]bool{"eu-central-1a": true, strings.Repeat("a", 64): true,
		strings.Repeat("a", 65): false, "eu--central-1a": false, "-a": false, "": false} {
		if got, good := awssts.ParseProviderID("aws:///" + zone + id); good != ok || ok && got.Zone != zone {
			t.Errorf("%q: %v, %v", zone, got, good)
		}
	}
}

// A region can be configured that no partition has.
func TestVerify_RegionOfNoPartition(t *testing.T) {
	w := newSetup(t)
	const region = "xx-nowhere-1"
	w.verifier.Regions = []string{region}
	_, err := w.present(w.forge("POST", "https://sts."+region+".amazonaws.com/", request.Body, region, "sts", nil))
	refused(t, err, reason.AccountNotAllowed)
}
