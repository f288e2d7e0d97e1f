// SPDX-License-Identifier: Apache-2.0

package flow_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/agent/internal/cloud"
	"github.com/mcs-attest/mcs-attest/agent/internal/cloudtest"
	"github.com/mcs-attest/mcs-attest/agent/internal/flow"
	"github.com/mcs-attest/mcs-attest/agent/internal/metadata"
	"github.com/mcs-attest/mcs-attest/agent/internal/paths"
	"github.com/mcs-attest/mcs-attest/agent/internal/verifiertest"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

// inCloud puts the machine into a cloud.
func (m *machine) inCloud(c *cloudtest.Machine) {
	m.t.Helper()
	it, err := cloud.New(paths.Paths{Metadata: c.Serve(m.t)}, c.Platform)
	ok(m.t, err)
	m.flow.Cloud = it
	m.flow.Claims = func(ctx context.Context) []byte {
		id, err := it.ProviderID(ctx)
		ok(m.t, err)
		return flow.Claims(paths.Paths{}, c.Platform, id, "")
	}
}

func proto(kinds ...evidence.Kind) []mcsattestv1.EvidenceKind {
	var out []mcsattestv1.EvidenceKind
	for _, k := range kinds {
		out = append(out, mcsattestv1.EvidenceKind(k))
	}
	return out
}

func TestMain(m *testing.M) {
	metadata.Quick.Try, metadata.Steady.Try = time.Minute, time.Minute // no test depends on the machine's speed
	os.Exit(m.Run())
}

// Each cloud, with a TPM and without.
func TestCloudEvidence(t *testing.T) {
	for _, c := range []*cloudtest.Machine{cloudtest.AWS(t, nil), cloudtest.GCP(t, nil), cloudtest.Azure(t, nil)} {
		var kinds []evidence.Kind
		for k := range c.Verifiers {
			kinds = append(kinds, k)
		}
		slices.Sort(kinds)
		withTPM := append([]evidence.Kind{evidence.TPM2}, kinds...)
		for name, required := range map[string][]evidence.Kind{" and a TPM": withTPM, " without a TPM": kinds} {
			t.Run(c.Platform+name, func(t *testing.T) { attestInCloud(t, c, required) })
		}
	}
}

func attestInCloud(t *testing.T, c *cloudtest.Machine, required []evidence.Kind) {
	m := newMachine(t)
	m.inCloud(c)
	if required[0] != evidence.TPM2 {
		m.flow.TPM, m.flow.NoTPM = nil, errors.New("there is none")
	}
	v := started(t, &verifiertest.Verifier{Required: proto(required...), Clouds: c.Verifiers,
		Change: func(r *mcsattestv1.ChallengeResponse) {
			r.Cloud = &mcsattestv1.CloudChallenge{AzureTokenResource: cloudtest.TokenResource}
		}})
	g, err := m.run(v)
	if err != nil {
		t.Fatalf("%v\n%s", err, m.console.String())
	}
	offered := slices.Sorted(slices.Values(v.Offered()[0]))
	if string(g.Token.Expose()) != verifiertest.Token || !slices.Equal(offered, proto(required...)) {
		t.Errorf("offered %v", offered)
	}
	if !strings.Contains(v.Claims()[0], `"providerID":"`+c.ProviderID+`"`) {
		t.Errorf("claims %s", v.Claims()[0])
	}
	want := "asking the cloud for evidence of this machine"
	if out := m.console.String(); !strings.Contains(out, want) {
		t.Errorf("console:\n%s", out)
	}
}

// fakeCloud fails the given number of times before it returns evidence.
type fakeCloud struct {
	err   error
	times int // negative: always
	asked int
	seen  []evidence.Binding
}

func (*fakeCloud) Offers() []evidence.Kind    { return []evidence.Kind{evidence.AWSIID} }
func (*fakeCloud) Makes(k evidence.Kind) bool { return k == evidence.AWSIID }

func (f *fakeCloud) Evidence(_ context.Context, k evidence.Kind, b evidence.Binding,
	_ *mcsattestv1.CloudChallenge) (*mcsattestv1.CloudEvidence, error) {
	f.asked++
	f.seen = append(f.seen, b)
	if f.times < 0 || f.asked <= f.times {
		return nil, f.err
	}
	return &mcsattestv1.CloudEvidence{Kind: mcsattestv1.EvidenceKind(k), Document: []byte("document")}, nil
}

// A temporary failure of the metadata service is retried. A final one ends the flow with the
// service's own sentence.
func TestCloudFaults(t *testing.T) {
	passes := &metadata.Fault{Cloud: "AWS", What: "the thing", Problem: "too many requests", Hint: "wait", Temporary: true}
	stays := &metadata.Fault{Cloud: "AWS", What: "the thing", Problem: "there is none", Hint: "make one"}
	late := &metadata.Fault{Cloud: "AWS", What: "the thing", Problem: "there is none yet", Temporary: true, Late: true}
	for _, c := range []struct {
		name    string
		cloud   *fakeCloud
		soft    string // "audit" or "pre-approved"
		pauses  int
		granted bool
	}{
		{"no failure", &fakeCloud{}, "", 0, true},
		{"two temporary failures", &fakeCloud{err: passes, times: 2}, "", 2, true},
		{"seven temporary failures", &fakeCloud{err: passes, times: 7}, "", 7, true},
		{"temporary failures that never end", &fakeCloud{err: passes, times: -1}, "", 7, false},
		{"a final failure", &fakeCloud{err: stays, times: -1}, "", 0, false},
		{"an error that the service did not cause", &fakeCloud{err: errors.New("too large"), times: -1}, "", 0, false},
		{"Audit ends after a few failures", &fakeCloud{err: passes, times: -1}, "audit", 2, false},
		{"Audit ends immediately after a final failure", &fakeCloud{err: stays, times: -1}, "audit", 0, false},
		{"a pre-approved config does not shorten the wait", &fakeCloud{err: late, times: -1},
			"pre-approved", 7, false},
		{"a pre-approved config is used after a final failure", &fakeCloud{err: stays, times: -1}, "pre-approved",
			0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t)
			m.flow.Cloud = c.cloud
			v := &verifiertest.Verifier{Required: proto(evidence.TPM2, evidence.AWSIID)}
			switch c.soft {
			case "audit":
				v.Mode = mcsattestv1.Mode_MODE_AUDIT
			case "pre-approved":
				v.Change = preApproved
			}
			v.Start(t)
			// This test examines the flow, so the verifier does not verify the document.
			v.AttestFunc = func(r *mcsattestv1.AttestRequest) (*mcsattestv1.AttestResponse, error) {
				if len(r.GetCloud()) != 1 || r.GetTpm2() == nil {
					t.Errorf("request %v", r)
				}
				return &mcsattestv1.AttestResponse{Token: verifiertest.Token, TokenLifetimeSeconds: 600}, nil
			}
			_, err := m.run(v)
			if len(m.slept) != c.pauses {
				t.Errorf("paused %v, want %d", m.slept, c.pauses)
			}
			for i, b := range c.cloud.seen {
				if b.Origin != v.Origin || slices.ContainsFunc(c.cloud.seen[:i],
					func(o evidence.Binding) bool { return o.Transcript == b.Transcript }) {
					t.Errorf("binding %d is %+v", i, b)
				}
			}
			var missing *flow.MissingEvidence
			var unchanged *flow.Unchanged
			switch {
			case c.granted:
				ok(t, err)
			case c.soft != "":
				if !errors.As(err, &unchanged) || !strings.Contains(unchanged.Why, c.cloud.err.Error()) {
					t.Errorf("error %v", err)
				}
			case !errors.As(err, &missing) || !errors.Is(err, c.cloud.err) ||
				!slices.Equal(missing.Kinds, []evidence.Kind{evidence.AWSIID}):
				t.Errorf("error %v", err)
			}
			if c.pauses > 0 && !strings.Contains(m.console.String(), "aws-iid: "+c.cloud.err.Error()+"; trying again") {
				t.Errorf("console:\n%s", m.console.String())
			}
		})
	}
}

// A kind of another cloud is missing evidence, and the cloud is not asked for it.
func TestKindOfAnotherCloudIsMissing(t *testing.T) {
	m := newMachine(t)
	c := &fakeCloud{}
	m.flow.Cloud = c
	_, err := m.run(started(t,
		&verifiertest.Verifier{Required: proto(evidence.TPM2, evidence.AWSIID, evidence.AzureAttested)}))
	var missing *flow.MissingEvidence
	if !errors.As(err, &missing) || !slices.Equal(missing.Kinds, []evidence.Kind{evidence.AzureAttested}) || c.asked != 0 {
		t.Errorf("error %v after %d questions", err, c.asked)
	}
}

// Evidence that the policy does not require is not collected.
func TestOnlyRequiredEvidenceIsCollected(t *testing.T) {
	m := newMachine(t)
	c := &fakeCloud{err: errors.New("it must not be asked"), times: -1}
	m.flow.Cloud = c
	_, err := m.run(started(t, &verifiertest.Verifier{}))
	ok(t, err)
	if c.asked != 0 {
		t.Errorf("asked %d times", c.asked)
	}
}

// late puts the machine, without a TPM, into a cloud where the first requests for path fail with
// the status. A negative number of times means always.
func (m *machine) late(c *cloudtest.Machine, path string, status, times int) {
	m.t.Helper()
	node := c.Metadata
	c.Metadata = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, path) && times != 0 {
			times--
			w.WriteHeader(status)
			return
		}
		node.ServeHTTP(w, r)
	})
	m.inCloud(c)
	m.flow.TPM, m.flow.NoTPM = nil, errors.New("the machine has no TPM 2.0")
}

// A role or identity that was assigned a moment ago appears late. The agent waits for it, and the
// console names it if it never appears.
func TestLateEvidenceIsRetried(t *testing.T) {
	awsCloud := func(t *testing.T) *cloudtest.Machine { return cloudtest.AWS(t, nil) }
	azureCloud := func(t *testing.T) *cloudtest.Machine { return cloudtest.Azure(t, nil) }
	for _, c := range []struct {
		name, path string
		cloud      func(*testing.T) *cloudtest.Machine
		status     int
		kinds      []evidence.Kind
		sentence   string
		hint       string
	}{
		{"an instance profile", "/iam/security-credentials/", awsCloud, 404,
			[]evidence.Kind{evidence.AWSIID, evidence.AWSSTS},
			"aws-sts: AWS metadata service, asked for the name of the instance's role: the instance has no IAM role (HTTP " +
				"status 404)",
			"hint: give the instance an instance profile; its role needs no permissions\n"},
		{"the role's credentials", "/iam/security-credentials/worker", awsCloud, 404,
			[]evidence.Kind{evidence.AWSIID, evidence.AWSSTS},
			"aws-sts: AWS metadata service, asked for the role's credentials: there are none yet (HTTP status 404)",
			"hint: the trust policy of the instance's role must let ec2.amazonaws.com assume it\n"},
		{"a managed identity", "/identity/oauth2/token", azureCloud, 400,
			[]evidence.Kind{evidence.AzureAttested},
			"azure-attested: Azure metadata service, asked for a token of the managed identity: the machine has no managed " +
				"identity",
			"hint: assign exactly one managed identity to the machine; it needs no roles\n"},
	} {
		for _, times := range []int{0, 1, 6, -1} {
			t.Run(fmt.Sprintf("%s, late by %d", c.name, times), func(t *testing.T) {
				machine := c.cloud(t)
				m := newMachine(t)
				m.late(machine, c.path, c.status, times)
				v := started(t, &verifiertest.Verifier{Required: proto(c.kinds...), Clouds: machine.Verifiers,
					Change: func(r *mcsattestv1.ChallengeResponse) {
						r.Cloud = &mcsattestv1.CloudChallenge{AzureTokenResource: cloudtest.TokenResource}
					}})
				_, err := m.run(v)
				// The verifier chooses among the offered kinds, so a late kind must still be
				// offered.
				if offered := slices.Sorted(slices.Values(v.Offered()[0])); !slices.Equal(offered, proto(c.kinds...)) {
					t.Errorf("%s: offered %v", c.name, offered)
				}
				out := m.console.String()
				if said := strings.Contains(out, c.sentence) &&
					strings.Contains(out, "; trying again in 1s\n"+c.hint); said != (times != 0) {
					t.Errorf("%s, late by %d: console:\n%s", c.name, times, out)
				}
				if times >= 0 {
					if err != nil || len(m.slept) != times {
						t.Errorf("%s, late by %d: error %v after %v", c.name, times, err, m.slept)
					}
					return
				}
				var missing *flow.MissingEvidence
				if !errors.As(err, &missing) || strings.Contains(err.Error(), "TPM") || len(m.slept) != 7 ||
					!slices.Equal(missing.Kinds, c.kinds[len(c.kinds)-1:]) ||
					!strings.Contains(err.Error(), strings.SplitAfterN(c.sentence, ": ", 2)[1]) {
					t.Errorf("%s: error %v after %v", c.name, err, m.slept)
				}
			})
		}
	}
}

// If the metadata service cannot name the machine, it is asked once per round.
func TestProviderIDIsRequestedOncePerRound(t *testing.T) {
	m := newMachine(t)
	c := cloudtest.GCP(t, nil)
	var asked atomic.Int32
	c.Metadata = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.WriteHeader(http.StatusForbidden) // final for one lookup
	})
	it, err := cloud.New(paths.Paths{Metadata: c.Serve(t)}, c.Platform)
	ok(t, err)
	lookups := 0
	m.flow.Cloud = it
	m.flow.Claims = func(ctx context.Context) []byte {
		lookups++
		_, _ = it.ProviderID(ctx)
		return []byte("{}")
	}
	_, err = m.run(started(t, &verifiertest.Verifier{}))
	ok(t, err)
	if lookups != 1 || asked.Load() != 1 {
		t.Errorf("%d lookups, %d requests", lookups, asked.Load())
	}
}
