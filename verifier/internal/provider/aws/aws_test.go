package aws_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
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
		public.Unique = tpm.NewTPMUPublicID(tpm.TPMAlgECC, &tpm.TPMSECCPoint{X: tpm.TPM2BECCParameter{Buffer: point[1 : 1+half]}, Y: tpm.TPM2BECCParameter{Buffer: point[1+half:]}})
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

// world is a cloud over HTTPS, one machine in it, and a provider that asks it
// with the real SDK.
type world struct {
	t        testing.TB
	cloud    *emulated.Cloud
	endpoint *emulated.Endpoint
	config   config.AWS
	options  outbound.Options
	provider *aws.Provider
	machine  emulated.Instance
	binding  evidence.Binding
	now      time.Time
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, cloud: emulated.New(emulated.Options{}), now: time.Now(), binding: evidence.Binding{Transcript: [32]byte{7}}}
	var err error
	if w.endpoint, err = w.cloud.Serve(""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.endpoint.Close() })
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
	w.config = config.AWS{Accounts: []string{account}, Regions: []string{"us-east-1", region}, VPCs: []string{vpc}, Infrastructure: "demo", Roles: []string{role}, EC2: e, STS: e}
	w.options = outbound.Options{Now: func() time.Time { return w.now }, PerSecond: 1e6, Burst: 1e6}
	w.start()
	w.machine = w.cloud.Add(w.instance())
	return w
}

func (w *world) start() {
	w.t.Helper()
	var err error
	if w.provider, err = aws.New(w.config, w.options); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) instance() emulated.Instance {
	return emulated.Instance{Role: role, Account: account, VPC: vpc, Zone: region + "a", Tags: map[string]string{"kubernetes.io/cluster/demo": "owned", "Name": "demo-worker-0"},
		EK: map[string][]byte{"rsa-2048": spki(w.t, endorsementKeys()[0])}}
}

// iid presents a machine's identity document.
func (w *world) iid(i emulated.Instance) (evidence.Statement, error) {
	return w.document(i, w.cloud.RSA2048(i.ID))
}

func (w *world) document(i emulated.Instance, raw []byte) (evidence.Statement, error) {
	w.t.Helper()
	extra, err := awsiid.ParseCertificates("emulated.pem", w.cloud.RegionCertificates(region))
	if err != nil {
		w.t.Fatal(err)
	}
	certificates := awsiid.Defaults().With(extra...)
	v := awsiid.Verifier{Certificates: func() *awsiid.Certificates { return certificates }, Accounts: w.config.Accounts, Regions: w.config.Regions,
		Requirements: awsiid.Requirements{VPCs: w.config.VPCs, Infrastructure: w.config.Infrastructure}, Describe: w.provider.Describer()}
	claim, err := v.Verify(w.t.Context(), evidence.Document{Kind: evidence.AWSIID, Raw: raw}, w.binding, w.now)
	if err != nil {
		w.t.Fatal("the document itself: ", err)
	}
	return claim.Confirm(w.t.Context(), evidence.Candidate{ProviderID: i.ProviderID()})
}

// sts presents the machine's signed request.
func (w *world) sts(i emulated.Instance) (evidence.Statement, error) {
	w.t.Helper()
	c, _ := w.cloud.Credentials(i.ID)
	raw, err := attester.Document(w.t.Context(), sdk.Credentials{AccessKeyID: c.AccessKeyID, SecretAccessKey: c.SecretAccessKey, SessionToken: c.SessionToken}, region, w.binding.Transcript, w.now)
	if err != nil {
		w.t.Fatal(err)
	}
	v := awssts.Verifier{Caller: w.provider.Caller(), Accounts: w.config.Accounts, Regions: w.config.Regions, Roles: w.config.Roles}
	claim, err := v.Verify(w.t.Context(), evidence.Document{Kind: evidence.AWSSTS, Raw: raw}, w.binding, w.now)
	if err != nil {
		w.t.Fatal("the document itself: ", err)
	}
	return claim.Confirm(w.t.Context(), evidence.Candidate{ProviderID: i.ProviderID()})
}

func (w *world) endorse(providerID string, key crypto.PublicKey) (*tpm2.Endorsement, error) {
	w.t.Helper()
	return tpm2.ProviderEndorser{Directory: w.provider.Directory(), ProviderID: providerID}.Endorse(w.t.Context(), tpm2.Identity{EK: parseEK(w.t, key)}, w.now)
}

func refused(t *testing.T, err error, want reason.Code) {
	t.Helper()
	if d := reason.From(err); d == nil || d.Code != want {
		t.Errorf("got %v, want %v", err, want)
	}
}

func TestAMachineOfAWSIsConfirmed(t *testing.T) {
	w := newWorld(t)
	s, err := w.iid(w.machine)
	if err != nil {
		t.Fatal(err)
	}
	if s.ProviderID != w.machine.ProviderID() || s.InstanceID != "aws:"+w.machine.ID || !s.Created.Equal(w.machine.Launch) || s.Bound {
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

func TestAttack_T04_OnlyOneLivingInstanceOfThatIdCounts(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*world)
		want   reason.Code
	}{
		{"EC2 answers with nothing", func(w *world) { w.cloud.Fail("DescribeInstances", emulated.Fault{Empty: true}) }, reason.InstanceNotFound},
		{"EC2 knows no such instance", func(w *world) { w.cloud.Remove(w.machine.ID) }, reason.InstanceNotFound},
		{"the same instance in two reservations", func(w *world) { w.cloud.Fail("DescribeInstances", emulated.Fault{Double: true}) }, reason.InstanceUnacceptable},
		{"a neighbour beside it", func(w *world) { w.cloud.Fail("DescribeInstances", emulated.Fault{Extra: true}) }, reason.InstanceUnacceptable},
		{"another instance's id", func(w *world) { w.cloud.Fail("DescribeInstances", emulated.Fault{Other: "i-0ffffffffffffffff"}) }, reason.InstanceUnacceptable},
		{"no id", func(w *world) { w.cloud.Fail("DescribeInstances", emulated.Fault{Other: " "}) }, reason.InstanceUnacceptable},
		{"terminated", state("terminated"), reason.InstanceUnacceptable},
		{"shutting down", state("shutting-down"), reason.InstanceUnacceptable},
		{"stopping", state("stopping"), reason.InstanceUnacceptable},
		{"stopped", state("stopped"), reason.InstanceUnacceptable},
		{"a state that nobody knows", state("Running"), reason.InstanceUnacceptable},
		{"in another network", func(w *world) { w.change(func(i *emulated.Instance) { i.VPC = "vpc-0ffffffffffffffff" }) }, reason.InstanceUnacceptable},
		{"of another cluster", func(w *world) {
			w.change(func(i *emulated.Instance) { i.Tags = map[string]string{"kubernetes.io/cluster/demo2": "owned"} })
		}, reason.InstanceUnacceptable},
		{"started again since", func(w *world) { w.change(func(i *emulated.Instance) { i.Launch = i.Launch.Add(time.Hour) }) }, reason.DocumentNotFresh},
		{"of another account", func(w *world) {
			w.cloud.Fail("DescribeInstances", emulated.Fault{Owner: "999999999999"})
		}, reason.InstanceUnacceptable},
		{"in another zone", func(w *world) { w.change(func(i *emulated.Instance) { i.Zone = region + "b" }) }, reason.InstanceUnacceptable},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			if _, err := w.iid(w.machine); err != nil {
				t.Fatal("the honest machine: ", err)
			}
			// The document is genuine, and from before.
			document := w.cloud.RSA2048(w.machine.ID)
			c.change(w)
			_, err := w.document(w.machine, document)
			refused(t, err, c.want)
		})
	}
	t.Run("pending", func(t *testing.T) {
		w := newWorld(t)
		state("pending")(w)
		if _, err := w.iid(w.machine); err != nil {
			t.Error(err)
		}
	})
}

func state(s string) func(*world) {
	return func(w *world) { w.change(func(i *emulated.Instance) { i.State = s }) }
}

func (w *world) change(f func(*emulated.Instance)) { w.cloud.Change(w.machine.ID, f) }

func TestAProviderThatIsDownIsTemporaryAndNeverAPass(t *testing.T) {
	type call struct {
		operation string
		ask       func(*world) error
	}
	calls := []call{
		{"DescribeInstances", func(w *world) error { _, err := w.iid(w.machine); return err }},
		{"GetInstanceTpmEkPub", func(w *world) error {
			_, err := w.endorse(w.machine.ProviderID(), endorsementKeys()[0])
			return err
		}},
		{"GetCallerIdentity", func(w *world) error { _, err := w.sts(w.machine); return err }},
	}
	faults := map[string]emulated.Fault{
		"quota":                  {Status: 503, Code: "RequestLimitExceeded"},
		"quota as 400":           {Status: 400, Code: "Throttling"},
		"internal error":         {Status: 500, Code: "InternalError"},
		"no permission":          {Status: 403, Code: "UnauthorizedOperation"},
		"a redirect":             {Location: "https://127.0.0.1:1/"},
		"a page":                 {Body: []byte("<html>sign in</html>"), Type: "text/html"},
		"JSON":                   {Body: []byte(`{"x":"<DescribeInstancesResponse/>"}`), Type: "application/json"},
		"nothing":                {Body: []byte{}, Type: "text/xml"},
		"10 MB":                  {Body: []byte("<a>" + strings.Repeat(" ", 10<<20)), Type: "text/xml"},
		"an answer cut off":      {Body: []byte(`<?xml version="1.0"?><GetInstanceTpmEkPubResponse><instanceId>i-`), Type: "text/xml"},
		"someone else's service": {Body: []byte("ok"), Type: "text/plain"},
	}
	for _, c := range calls {
		t.Run(c.operation, func(t *testing.T) {
			for name, f := range faults {
				t.Run(name, func(t *testing.T) {
					w := newWorld(t)
					w.cloud.Fail(c.operation, f)
					d := reason.From(c.ask(w))
					if d == nil || !d.Code.Temporary() || d.Code == reason.Internal {
						t.Fatalf("got %v", d)
					}
					// It comes back, and the no is forgotten after seconds.
					w.cloud.Fail(c.operation, emulated.Fault{})
					w.now = w.now.Add(2 * time.Second)
					if err := c.ask(w); err != nil {
						t.Errorf("after it came back: %v", err)
					}
				})
			}
			t.Run("nobody listens", func(t *testing.T) {
				w := newWorld(t)
				w.endpoint.Close()
				refused(t, c.ask(w), reason.ProviderUnavailable)
			})
			t.Run("a certificate of someone else", func(t *testing.T) {
				w := newWorld(t)
				w.config.EC2.CA, w.config.STS.CA = "", ""
				w.start()
				refused(t, c.ask(w), reason.ProviderUnavailable)
				if n := w.cloud.Calls(""); n != 0 {
					t.Errorf("%d calls arrived", n)
				}
			})
			t.Run("the budget is used up", func(t *testing.T) {
				w := newWorld(t)
				w.options.PerSecond, w.options.Burst = 1e-9, 1
				w.start()
				if err := c.ask(w); err != nil {
					t.Fatal(err)
				}
				w.now = w.now.Add(24 * time.Hour) // whatever is kept is old
				if c.operation == "GetCallerIdentity" {
					w.now = w.now.Add(-24 * time.Hour)
				}
				refused(t, c.ask(w), reason.ProviderUnavailable)
				if n := w.cloud.Calls(""); n != 1 {
					t.Errorf("%d calls", n)
				}
			})
		})
	}
}

func TestASlowProviderHoldsNobodyForLong(t *testing.T) {
	w := newWorld(t)
	w.cloud.Fail("DescribeInstances", emulated.Fault{Delay: time.Minute})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := w.provider.Describer().Describe(ctx, region, w.machine.ID)
	refused(t, err, reason.ProviderUnavailable)
}

func TestANoIsNotAskedForAgainAtOnce(t *testing.T) {
	w := newWorld(t)
	w.cloud.Remove(w.machine.ID)
	for range 10 {
		_, err := w.provider.Describer().Describe(t.Context(), region, w.machine.ID)
		refused(t, err, reason.InstanceNotFound)
	}
	if n := w.cloud.Calls("DescribeInstances"); n != 1 {
		t.Errorf("%d calls", n)
	}
	// A yes is not kept: what it says can change.
	other := w.cloud.Add(w.instance())
	for range 3 {
		if _, err := w.provider.Describer().Describe(t.Context(), region, other.ID); err != nil {
			t.Fatal(err)
		}
	}
	if n := w.cloud.Calls("DescribeInstances"); n != 4 {
		t.Errorf("%d calls", n)
	}
}

func TestWhereEC2IsNotAsked(t *testing.T) {
	w := newWorld(t)
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
			refused(t, ask("eu-west-1", w.machine.ID), reason.AccountNotAllowed)
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

func TestAConfigurationThatCannotWorkIsRefused(t *testing.T) {
	w := newWorld(t)
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

func TestAttack_T06_TheRelayFollowsNothing(t *testing.T) {
	w := newWorld(t)
	if _, err := w.sts(w.machine); err != nil {
		t.Fatal(err)
	}
	var reached []string
	elsewhere := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { reached = append(reached, r.URL.String()) }))
	defer elsewhere.Close()
	for _, f := range []emulated.Fault{{Location: elsewhere.URL}, {Location: strings.Replace(elsewhere.URL, "http:", "https:", 1)}} {
		w.cloud.Fail("GetCallerIdentity", f)
		_, err := w.sts(w.machine)
		refused(t, err, reason.ProviderUnavailable)
	}
	if len(reached) != 0 {
		t.Errorf("followed to %q", reached)
	}
	// A host that is not the region's is not sent to, whoever asks.
	_, _, _, err := w.provider.Caller().GetCallerIdentity(t.Context(), awssts.Request{Region: region, Host: "sts.eu-central-1.amazonaws.com.evil.example"})
	refused(t, err, reason.ProviderUnavailable)
	for what, status := range map[string]int{"too many": 429, "down": 502} {
		w.cloud.Fail("GetCallerIdentity", emulated.Fault{Status: status, Code: what})
		_, err := w.sts(w.machine)
		refused(t, err, reason.ProviderUnavailable)
	}
}

func TestAttack_T21_TheTPMOfAnotherInstance(t *testing.T) {
	w := newWorld(t)
	mine, others := endorsementKeys()[0], endorsementKeys()[1]
	if _, err := w.endorse(w.machine.ProviderID(), mine); err != nil {
		t.Fatal(err)
	}
	_, err := w.endorse(w.machine.ProviderID(), others)
	refused(t, err, reason.EKUntrusted)
	bare := w.instance()
	bare.EK = nil
	_, err = w.endorse(w.cloud.Add(bare).ProviderID(), mine)
	refused(t, err, reason.EKUntrusted)
	_, err = w.endorse(w.machine.ProviderID(), endorsementKeys()[2])
	refused(t, err, reason.EKUntrusted)
	// The answers are about this instance and this key, or they are none.
	for name, f := range map[string]emulated.Fault{"another instance": {Other: "i-0ffffffffffffffff"}, "no key": {Empty: true}} {
		other := w.cloud.Add(w.instance())
		w.cloud.Fail("GetInstanceTpmEkPub", f)
		if _, err := w.endorse(other.ProviderID(), mine); reason.From(err) == nil || reason.From(err).Code != reason.ProviderUnavailable {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.cloud.Fail("GetInstanceTpmEkPub", emulated.Fault{})
	if _, err := w.endorse("gce://p/z/n", mine); !errors.Is(err, tpm2.ErrNotMine) {
		t.Errorf("another cloud's instance: %v", err)
	}
	_, err = w.endorse("aws:////"+w.machine.ID, mine)
	refused(t, err, reason.InstanceNotFound)
}

func TestAnEKIsAskedForOnce(t *testing.T) {
	w := newWorld(t)
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
	w := newWorld(t)
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
	t.Logf("calls per 1 000 attestations, first and second time: aws-iid 1 000 and 1 000 DescribeInstances, tpm2 1 000 and 0 GetInstanceTpmEkPub, aws-sts 1 000 and 1 000 GetCallerIdentity")
}
