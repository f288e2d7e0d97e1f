// SPDX-License-Identifier: Apache-2.0

package aws_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	tpm "github.com/google/go-tpm/tpm2"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/awsiid"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/awssts"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/awssts/attester"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	emulated "github.com/mcs-attest/mcs-attest/testvm/cloud/aws"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/tlsserver"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/outbound"
	"github.com/mcs-attest/mcs-attest/verifier/internal/provider/aws"
)

const account, role, vpc, region = "123456789012", "demo-worker-role", "vpc-0a1b2c3d4e5f60718", "eu-central-1"

// endorsementKeys are made once: what they are does not matter, that they differ does.
var endorsementKeys = sync.OnceValue(func() (all [3]crypto.PublicKey) {
	for n := range 2 {
		k, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			panic(err)
		}
		all[n] = &k.PublicKey
	}
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	all[2] = &k.PublicKey
	return all
})

func parseEK(t testing.TB, key crypto.PublicKey) *tpm2.EK {
	t.Helper()
	var public tpm.TPMTPublic
	switch k := key.(type) {
	case *rsa.PublicKey:
		public = tpm.RSAEKTemplate
		public.Unique = tpm.NewTPMUPublicID(tpm.TPMAlgRSA, &tpm.TPM2BPublicKeyRSA{Buffer: k.N.Bytes()})
	case *ecdsa.PublicKey:
		point, err := k.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		half := len(point) / 2
		public = tpm.ECCEKTemplate
		public.Unique = tpm.NewTPMUPublicID(tpm.TPMAlgECC,
			&tpm.TPMSECCPoint{X: tpm.TPM2BECCParameter{Buffer: point[1 : 1+half]},
				Y: tpm.TPM2BECCParameter{Buffer: point[1+half:]}})
	}
	ek, err := tpm2.ParseEK(tpm.Marshal(public))
	if err != nil {
		t.Fatal(err)
	}
	return ek
}

func spki(t testing.TB, key crypto.PublicKey) []byte {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// fixture is a cloud over HTTPS, one machine in it, and a provider that asks it
// with the real SDK.
type fixture struct {
	t        testing.TB
	cloud    *emulated.Cloud
	endpoint *tlsserver.Server
	config   config.AWS
	options  outbound.Options
	provider *aws.Provider
	machine  emulated.Instance
	binding  evidence.Binding
	now      time.Time
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	w := &fixture{t: t, cloud: emulated.New(emulated.Options{}), now: time.Now(),
		binding: evidence.Binding{Transcript: [32]byte{7}}}
	var err error
	if w.endpoint, err = w.cloud.Serve(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.endpoint.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, w.endpoint.CA, 0o600); err != nil {
		t.Fatal(err)
	}
	if setter, ok := t.(interface{ Setenv(string, string) }); ok {
		setter.Setenv("AWS_ACCESS_KEY_ID", w.cloud.Operator().AccessKeyID)
		setter.Setenv("AWS_SECRET_ACCESS_KEY", w.cloud.Operator().SecretAccessKey)
		setter.Setenv("AWS_CONFIG_FILE", filepath.Join(t.TempDir(), "none"))
		setter.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(t.TempDir(), "none"))
	}
	e := config.Endpoint{URL: w.endpoint.URL, CA: ca}
	w.config = config.AWS{Accounts: []string{account}, Regions: []string{"us-east-1", region}, VPCs: []string{vpc},
		Infrastructure: "demo", Roles: []string{role}, EC2: e, STS: e}
	w.options = outbound.Options{Now: func() time.Time { return w.now }, PerSecond: 1e6, Burst: 1e6}
	w.start()
	w.machine = w.cloud.Add(w.instance())
	return w
}

func (w *fixture) start() {
	w.t.Helper()
	var err error
	if w.provider, err = aws.New(w.config, w.options); err != nil {
		w.t.Fatal(err)
	}
}

func (w *fixture) instance() emulated.Instance {
	return emulated.Instance{Role: role, Account: account, VPC: vpc, Zone: region + "a",
		Tags: map[string]string{"kubernetes.io/cluster/demo": "owned", "Name": "demo-worker-0"},
		EK:   map[string][]byte{"rsa-2048": spki(w.t, endorsementKeys()[0])}}
}

// iid presents a machine's identity document.
func (w *fixture) iid(i emulated.Instance) (evidence.Statement, error) {
	return w.document(i, w.cloud.RSA2048(i.ID))
}

func (w *fixture) document(i emulated.Instance, raw []byte) (evidence.Statement, error) {
	w.t.Helper()
	extra, err := awsiid.ParseCertificates("emulated.pem", w.cloud.RegionCertificates(region))
	if err != nil {
		w.t.Fatal(err)
	}
	certificates := awsiid.Defaults().With(extra...)
	v := awsiid.Verifier{Certificates: func() *awsiid.Certificates { return certificates }, Accounts: w.config.Accounts,
		Regions:      w.config.Regions,
		Requirements: awsiid.Requirements{VPCs: w.config.VPCs, Infrastructure: w.config.Infrastructure},
		Describe:     w.provider.Describer()}
	claim, err := v.Verify(w.t.Context(), evidence.Document{Kind: evidence.AWSIID, Raw: raw}, w.binding, w.now)
	if err != nil {
		w.t.Fatal("the document itself: ", err)
	}
	return claim.Confirm(w.t.Context(), evidence.Candidate{ProviderID: i.ProviderID()})
}

// sts presents the machine's signed request.
func (w *fixture) sts(i emulated.Instance) (evidence.Statement, error) {
	w.t.Helper()
	c, _ := w.cloud.Credentials(i.ID)
	raw, err := attester.Document(w.t.Context(), sdk.Credentials{AccessKeyID: c.AccessKeyID,
		SecretAccessKey: c.SecretAccessKey, SessionToken: c.SessionToken}, region, w.binding.Transcript, w.now)
	if err != nil {
		w.t.Fatal(err)
	}
	v := awssts.Verifier{Caller: w.provider.Caller(), Accounts: w.config.Accounts, Regions: w.config.Regions,
		Roles: w.config.Roles}
	claim, err := v.Verify(w.t.Context(), evidence.Document{Kind: evidence.AWSSTS, Raw: raw}, w.binding, w.now)
	if err != nil {
		w.t.Fatal("the document itself: ", err)
	}
	return claim.Confirm(w.t.Context(), evidence.Candidate{ProviderID: i.ProviderID()})
}

func (w *fixture) endorse(providerID string, key crypto.PublicKey) (*tpm2.Endorsement, error) {
	w.t.Helper()
	return tpm2.ProviderEndorser{Directory: w.provider.Directory(), ProviderID: providerID}.Endorse(w.t.Context(),
		tpm2.Identity{EK: parseEK(w.t, key)}, w.now)
}

func refused(t *testing.T, err error, want reason.Code) {
	t.Helper()
	if d := reason.From(err); d == nil || d.Code != want {
		t.Errorf("got %v, want %v", err, want)
	}
}

func TestConfirm_AcceptsAMachineOfAWS(t *testing.T) {
	w := newFixture(t)
	s, err := w.iid(w.machine)
	if err != nil {
		t.Fatal(err)
	}
	if s.ProviderID != w.machine.ProviderID() || s.InstanceID != "aws:"+w.machine.ID ||
		!s.Created.Equal(w.machine.Launch) || s.Bound {
		t.Errorf("aws-iid: %+v", s)
	}
	s, err = w.sts(w.machine)
	if err != nil {
		t.Fatal(err)
	}
	if s.InstanceID != "aws:"+w.machine.ID || !s.Bound {
		t.Errorf("aws-sts: %+v", s)
	}
	e, err := w.endorse(w.machine.ProviderID(), endorsementKeys()[0])
	if err != nil {
		t.Fatal(err)
	}
	if e.ProviderID != w.machine.ProviderID() || e.InstanceID != "aws:"+w.machine.ID {
		t.Errorf("tpm2: %+v", e)
	}
	if n := w.cloud.Calls(""); n != 3 {
		t.Errorf("%d calls", n)
	}
}

// Outbound's deadline is that of its tests; here the caller's has passed when the
// answer comes.
func TestLateAnswer_IsIgnored(t *testing.T) {
	w := newFixture(t)
	w.cloud.Fail("DescribeInstances", emulated.Fault{Delay: 200 * time.Millisecond})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := w.provider.Describer().Describe(ctx, region, w.machine.ID)
	refused(t, err, reason.ProviderUnavailable)
}

func TestDenial_IsNotRequestedAgainImmediately(t *testing.T) {
	w := newFixture(t)
	w.cloud.Remove(w.machine.ID)
	for range 10 {
		_, err := w.provider.Describer().Describe(t.Context(), region, w.machine.ID)
		refused(t, err, reason.InstanceNotFound)
	}
	if n := w.cloud.Calls("DescribeInstances"); n != 1 {
		t.Errorf("%d calls", n)
	}
}

// An immediate second request of a machine costs no second call; EC2's answer can change,
// so it counts for two seconds.
func TestInstance_IsQueriedOnceInTwoSeconds(t *testing.T) {
	w := newFixture(t)
	ask := func(id string) awsiid.Instance {
		t.Helper()
		i, err := w.provider.Describer().Describe(t.Context(), region, id)
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	ask(w.machine.ID)
	w.change(func(i *emulated.Instance) { i.State = "stopping" })
	w.now = w.now.Add(2*time.Second - 1)
	if i := ask(w.machine.ID); i.State != "running" {
		t.Errorf("queried again: %+v", i)
	}
	// It is no answer about another instance.
	if i := ask(w.cloud.Add(w.instance()).ID); i.ID == w.machine.ID {
		t.Errorf("%+v", i)
	}
	w.now = w.now.Add(1)
	if i := ask(w.machine.ID); i.State != "stopping" {
		t.Errorf("after two seconds: %+v", i)
	}
	if n := w.cloud.Calls("DescribeInstances"); n != 3 {
		t.Errorf("%d calls", n)
	}
}

func TestWhenEC2IsNotQueried(t *testing.T) {
	w := newFixture(t)
	for name, ask := range map[string]func(string, string) error{
		"describe": func(region, id string) error {
			_, err := w.provider.Describer().Describe(t.Context(), region, id)
			return err
		},
		"keys": func(region, id string) error {
			_, err := w.endorse("aws:///"+region+"a/"+id, endorsementKeys()[0])
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := ask(region, w.machine.ID); err != nil {
				t.Fatal(err)
			}
			calls := w.cloud.Calls("")
			refused(t, ask("eu-west-1", w.machine.ID), reason.ProviderUnavailable)
			for _, id := range []string{"", "i-1", w.machine.ID + "0", "i-0ffffffffffffff/x", strings.ToUpper(w.machine.ID)} {
				refused(t, ask(region, id), reason.InstanceNotFound)
			}
			if n := w.cloud.Calls(""); n != calls {
				t.Errorf("%d calls more", n-calls)
			}
		})
	}
	w.config.Offline, w.config.Roles = true, nil
	w.start()
	if w.provider.Describer() != nil || w.provider.Directory() != nil || w.provider.Caller() != nil {
		t.Error("offline and without roles, something can be asked")
	}
}

func TestConfigurationThatCannotWork_IsRejected(t *testing.T) {
	w := newFixture(t)
	for name, change := range map[string]func(*config.AWS){
		"a region that is none": func(c *config.AWS) { c.Regions = []string{"eu-central-1.evil.example"} },
		"no such file":          func(c *config.AWS) { c.EC2.CA = "/nonexistent" },
		"no certificate in it":  func(c *config.AWS) { c.STS.CA = os.DevNull },
	} {
		c := w.config
		change(&c)
		if _, err := aws.New(c, w.options); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestEK_IsQueriedOnce(t *testing.T) {
	w := newFixture(t)
	second := w.instance()
	second.EK = map[string][]byte{"rsa-2048": spki(t, endorsementKeys()[1])}
	other := w.cloud.Add(second)
	for range 5 {
		if _, err := w.endorse(w.machine.ProviderID(), endorsementKeys()[0]); err != nil {
			t.Fatal(err)
		}
		if _, err := w.endorse(other.ProviderID(), endorsementKeys()[1]); err != nil {
			t.Fatal(err)
		}
		// What is kept of one instance says nothing of the other.
		_, err := w.endorse(other.ProviderID(), endorsementKeys()[0])
		refused(t, err, reason.EKUntrusted)
	}
	if n := w.cloud.Calls("GetInstanceTpmEkPub"); n != 2 {
		t.Errorf("%d calls for two instances", n)
	}
	// Nor of one with the same id elsewhere (CVE-2025-11621).
	_, err := w.endorse("aws:///us-east-1a/"+w.machine.ID, endorsementKeys()[0])
	refused(t, err, reason.InstanceNotFound)
	w.now = w.now.Add(13 * time.Hour)
	if _, err := w.endorse(w.machine.ProviderID(), endorsementKeys()[0]); err != nil {
		t.Fatal(err)
	}
	if n := w.cloud.Calls("GetInstanceTpmEkPub"); n != 4 {
		t.Errorf("%d calls after half a day", n)
	}
}

// How many calls a fleet costs: each machine attests twice, as after a reboot.
func TestCallsPerThousandAttestations(t *testing.T) {
	w := newFixture(t)
	const machines = 100
	var all []emulated.Instance
	for n := range machines {
		i := w.instance()
		i.ID = fmt.Sprintf("i-%017x", n+1)
		all = append(all, w.cloud.Add(i))
	}
	for round, want := range []map[string]int{
		{"DescribeInstances": machines, "GetInstanceTpmEkPub": machines, "GetCallerIdentity": machines},
		{"DescribeInstances": 2 * machines, "GetInstanceTpmEkPub": machines, "GetCallerIdentity": 2 * machines},
	} {
		w.now = w.now.Add(time.Minute)
		for _, i := range all {
			if _, err := w.iid(i); err != nil {
				t.Fatal(err)
			}
			if _, err := w.endorse(i.ProviderID(), endorsementKeys()[0]); err != nil {
				t.Fatal(err)
			}
			if _, err := w.sts(i); err != nil {
				t.Fatal(err)
			}
		}
		for operation, n := range want {
			if got := w.cloud.Calls(operation); got != n {
				t.Errorf("round %d: %d of %s, want %d", round+1, got, operation, n)
			}
		}
	}
	t.Logf("calls per 1 000 attestations, first and second time: aws-iid 1 000 and 1 000 DescribeInstances, tpm2 1 000 " +
		"and 0 GetInstanceTpmEkPub, aws-sts 1 000 and 1 000 GetCallerIdentity")
}
