// SPDX-License-Identifier: Apache-2.0

package cloud_test

import (
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/agent/internal/cloud"
	"github.com/mcs-attest/mcs-attest/agent/internal/cloudtest"
	"github.com/mcs-attest/mcs-attest/agent/internal/metadata"
	"github.com/mcs-attest/mcs-attest/agent/internal/paths"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/azure"
)

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newCloud(t *testing.T, platform, base string) *cloud.Cloud {
	t.Helper()
	c, err := cloud.New(paths.Paths{Metadata: base}, platform)
	ok(t, err)
	if c == nil {
		t.Fatalf("platform %s has nothing", platform)
	}
	return c
}

var binding = evidence.Binding{Transcript: [32]byte{1, 2, 3, 31: 0xff}, Origin: "https://api-int.example.com:22623"}

func TestMain(m *testing.M) {
	metadata.Quick.Try, metadata.Steady.Try = time.Minute, time.Minute // no test depends on the machine's speed
	os.Exit(m.Run())
}

// The verifier accepts the evidence that the agent gathers. Bound kinds are accepted only in the
// same conversation.
func TestEvidenceVerifies(t *testing.T) {
	for _, m := range []*cloudtest.Machine{cloudtest.AWS(t, nil), cloudtest.GCP(t, nil), cloudtest.Azure(t, nil)} {
		c := newCloud(t, m.Platform, m.Serve(t))
		c.Start(t.Context())
		id, err := c.ProviderID(t.Context())
		ok(t, err)
		if id != m.ProviderID {
			t.Errorf("%s: provider id %q, want %q", m.Platform, id, m.ProviderID)
		}
		offers := c.Offers()
		if len(offers) != len(m.Verifiers) || !slices.IsSorted(offers) {
			t.Errorf("%s offers %v", m.Platform, offers)
		}
		for _, kind := range offers {
			t.Run(kind.String(), func(t *testing.T) {
				ev, err := c.Evidence(t.Context(), kind, binding,
					&mcsattestv1.CloudChallenge{AzureTokenResource: cloudtest.TokenResource})
				ok(t, err)
				if evidence.Kind(ev.GetKind()) != kind {
					t.Errorf("kind %v", ev.GetKind())
				}
				d := evidence.Document{Kind: kind, Raw: ev.GetDocument(), Certificates: ev.GetCertificates(), Token: ev.GetToken()}
				appraise := func(b evidence.Binding) (evidence.Statement, error) {
					claim, err := m.Verifiers[kind].Verify(t.Context(), d, b, time.Now())
					if err != nil {
						return evidence.Statement{}, err
					}
					return claim.Confirm(t.Context(), evidence.Candidate{ProviderID: m.ProviderID})
				}
				s, err := appraise(binding)
				ok(t, err)
				if s.ProviderID != m.ProviderID || s.Bound != (kind != evidence.AWSIID) {
					t.Errorf("statement %+v", s)
				}
				if !s.Bound {
					return
				}
				other := binding
				other.Transcript[0] ^= 1
				if _, err := appraise(other); err == nil {
					t.Error("accepted in another conversation")
				}
			})
		}
	}
}

// The agent requests a managed identity token only if the verifier asks for one.
func TestAzureToken(t *testing.T) {
	m := cloudtest.Azure(t, func(i *azure.Instance) { i.Identity = "" })
	c := newCloud(t, "azure", m.Serve(t))
	for _, ch := range []*mcsattestv1.CloudChallenge{nil, {}} {
		ev, err := c.Evidence(t.Context(), evidence.AzureAttested, binding, ch)
		ok(t, err)
		if len(ev.GetToken()) != 0 {
			t.Error("a token was requested")
		}
	}
	_, err := c.Evidence(t.Context(), evidence.AzureAttested, binding,
		&mcsattestv1.CloudChallenge{AzureTokenResource: cloudtest.TokenResource})
	var fault *metadata.Fault
	if !errors.As(err, &fault) || !fault.Late || !strings.Contains(fault.Problem, "no managed identity") {
		t.Errorf("error %v", err)
	}
}

// A request to STS is signed with the time of the metadata service, not with the node's clock.
func TestSigningTime(t *testing.T) {
	m := cloudtest.AWS(t, nil)
	node := m.Metadata
	m.Metadata = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := httptest.NewRecorder()
		node.ServeHTTP(answer, r)
		maps.Copy(w.Header(), answer.Header())
		w.Header().Set("Date", "Tue, 06 May 2031 07:08:09 GMT")
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes())
	})
	ev, err := newCloud(t, "aws", m.Serve(t)).Evidence(t.Context(), evidence.AWSSTS, binding, nil)
	ok(t, err)
	var document struct{ AmzDate, Region, Authorization string }
	ok(t, json.Unmarshal(ev.GetDocument(), &document))
	if document.AmzDate != "20310506T070809Z" || document.Region != "eu-central-1" ||
		!strings.Contains(document.Authorization, "x-mcs-attest-challenge") {
		t.Errorf("signed %+v", document)
	}
}

// The offered kinds depend only on the platform. Neither a service that is turned off nor a missing
// role changes them.
func TestOffers(t *testing.T) {
	var asked atomic.Int32
	service := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	t.Cleanup(service.Close)
	for platform, want := range map[string][]evidence.Kind{
		"aws": {evidence.AWSIID, evidence.AWSSTS}, "gcp": {evidence.GCPIdentity}, "azure": {evidence.AzureAttested},
		"vmware": nil,
	} {
		if got := newCloud(t, platform, service.URL).Offers(); !slices.Equal(got, want) {
			t.Errorf("%s offers %v, want %v", platform, got, want)
		}
	}
	if asked.Load() != 0 {
		t.Errorf("the service was asked %d times", asked.Load())
	}
	c := newCloud(t, "aws", "http://127.0.0.1:1")
	if !c.Makes(evidence.AWSSTS) || c.Makes(evidence.TPM2) || c.Makes(evidence.GCPIdentity) {
		t.Error("Makes is true for a kind that the platform lacks")
	}
	if _, err := c.Evidence(t.Context(), evidence.GCPIdentity, binding, nil); err == nil {
		t.Error("another cloud's evidence")
	}
}

// A service that does not answer costs one lookup; a later lookup finds the provider id.
func TestProviderID_LimitsALookup(t *testing.T) {
	m := cloudtest.GCP(t, nil)
	node := m.Metadata
	var up atomic.Bool
	m.Metadata = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !up.Load() {
			<-r.Context().Done()
			return
		}
		node.ServeHTTP(w, r)
	})
	c := newCloud(t, "gcp", m.Serve(t))
	restore := cloud.SetLookupTime(10 * time.Millisecond)
	id, err := c.ProviderID(t.Context())
	restore()
	if id != "" || err == nil || err.Error() != "the metadata service did not answer within 10ms" {
		t.Errorf("provider id %q, error %v", id, err)
	}
	up.Store(true)
	if id, err := c.ProviderID(t.Context()); id != m.ProviderID || err != nil {
		t.Errorf("provider id %q, error %v", id, err)
	}
}

// The provider id is requested until the service has answered, and then cached.
func TestProviderID_RetriesUntilTheServiceAnswers(t *testing.T) {
	m := cloudtest.GCP(t, nil)
	node := m.Metadata
	var up atomic.Bool
	var asked atomic.Int32
	m.Metadata = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if !up.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		node.ServeHTTP(w, r)
	})
	c := newCloud(t, "gcp", m.Serve(t))
	if id, err := c.ProviderID(t.Context()); id != "" || err == nil {
		t.Errorf("provider id %q, error %v", id, err)
	}
	up.Store(true)
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			if id, err := c.ProviderID(t.Context()); id != m.ProviderID || err != nil {
				t.Errorf("provider id %q, error %v", id, err)
			}
		})
	}
	wait.Wait()
	n := asked.Load()
	_, err := c.ProviderID(t.Context())
	ok(t, err)
	if asked.Load() != n {
		t.Error("the cached provider id was requested again")
	}
}

func TestPlatformsWithoutEvidence(t *testing.T) {
	for _, id := range []string{"", "metal", "qemu", "openstack", "zvm"} {
		if c, err := cloud.New(paths.Default(), id); c != nil || err != nil {
			t.Errorf("%q: %v, %v", id, c, err)
		}
	}
	if _, err := cloud.New(paths.Paths{Metadata: "169.254.169.254"}, "aws"); err == nil {
		t.Error("an address that is no URL")
	}
}

// Documents above the contract's limits are not sent.
func TestEvidence_RejectsLargeDocuments(t *testing.T) {
	m := cloudtest.GCP(t, nil)
	m.Metadata = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Metadata-Flavor", "Google")
		_, _ = w.Write([]byte(strings.Repeat("a", 64<<10+1)))
	})
	_, err := newCloud(t, "gcp", m.Serve(t)).Evidence(t.Context(), evidence.GCPIdentity, binding, nil)
	if err == nil || !strings.Contains(err.Error(), "more than 65536 bytes") {
		t.Errorf("error %v", err)
	}
}

func TestVSphere(t *testing.T) {
	dir := t.TempDir()
	p := paths.Paths{SMBIOSSerial: filepath.Join(dir, "serial"), SMBIOSUUID: filepath.Join(dir, "uuid")}
	const (
		serial = "VMware-42 2e 49 56 ad 22 11 39-6d 72 59 cc 8f 26 bc 90\n"
		uuid   = "56492e42-22ad-3911-6d72-59cc8f26bc90\n"
		want   = "vsphere://422e4956-ad22-1139-6d72-59cc8f26bc90"
	)
	for _, c := range []struct{ name, serial, uuid, want string }{
		{"the serial number has it", serial, uuid, want},
		{"the serial number is the host's", "7XYZ123\n", uuid, want},
		{"the UUID is in upper case", "", strings.ToUpper(uuid), want},
		{"there is no UUID", serial, "", want},
		{"the serial number wins", serial, "00112233-4455-6677-8899-aabbccddeeff\n", want},
		{"the serial number is cut", serial[:30], uuid, want},
		{"neither", "None", "not a UUID", ""},
		{"a UUID of zeros", "VMware-" + strings.Repeat("00 ", 16), "00000000-0000-0000-0000-000000000000", ""},
		{"a UUID of ones", "", "ffffffff-ffff-ffff-ffff-ffffffffffff", ""},
		{"a UUID without dashes", "", strings.ReplaceAll(uuid, "-", ""), ""},
	} {
		ok(t, os.WriteFile(p.SMBIOSSerial, []byte(c.serial), 0o600))
		ok(t, os.WriteFile(p.SMBIOSUUID, []byte(c.uuid), 0o600))
		v, err := cloud.New(p, "vmware")
		ok(t, err)
		id, err := v.ProviderID(t.Context())
		if id != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: %q and error %v", c.name, id, err)
		}
		if offers := v.Offers(); len(offers) != 0 {
			t.Errorf("%s: offers %v", c.name, offers)
		}
	}
}

// A token for one verifier is useless at another.
func TestGCPAudienceNamesTheVerifier(t *testing.T) {
	m := cloudtest.GCP(t, nil)
	ev, err := newCloud(t, "gcp", m.Serve(t)).Evidence(t.Context(), evidence.GCPIdentity, binding, nil)
	ok(t, err)
	other := binding
	other.Origin = "https://other.example.com:22623"
	_, err = m.Verifiers[evidence.GCPIdentity].Verify(t.Context(),
		evidence.Document{Kind: evidence.GCPIdentity, Raw: ev.GetDocument()}, other, time.Now())
	if err == nil || reason.From(err).Code != reason.DocumentNotFresh {
		t.Errorf("error %v", err)
	}
}
