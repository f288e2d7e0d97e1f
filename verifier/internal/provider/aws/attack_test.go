// SPDX-License-Identifier: Apache-2.0

package aws_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/awssts"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	emulated "github.com/mcs-attest/mcs-attest/testvm/cloud/aws"
)

func TestAttack_T04_OnlyOneLivingInstanceOfThatIdCounts(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*fixture)
		want   reason.Code
	}{
		{"EC2 answers with nothing", func(w *fixture) { w.cloud.Fail("DescribeInstances", emulated.Fault{Empty: true}) },
			reason.InstanceNotFound},
		{"EC2 has no such instance", func(w *fixture) { w.cloud.Remove(w.machine.ID) }, reason.InstanceNotFound},
		{"the same instance in two reservations", func(w *fixture) {
			w.cloud.Fail("DescribeInstances", emulated.Fault{Double: true})
		}, reason.MachineAmbiguous},
		{"a neighbor beside it", func(w *fixture) { w.cloud.Fail("DescribeInstances", emulated.Fault{Extra: true}) },
			reason.MachineAmbiguous},
		{"another instance's id", func(w *fixture) {
			w.cloud.Fail("DescribeInstances", emulated.Fault{Other: "i-0ffffffffffffffff"})
		}, reason.ProviderUnavailable},
		{"no id", func(w *fixture) { w.cloud.Fail("DescribeInstances", emulated.Fault{Other: " "}) },
			reason.ProviderUnavailable},
		{"terminated", state("terminated"), reason.InstanceUnacceptable},
		{"shutting down", state("shutting-down"), reason.InstanceUnacceptable},
		{"stopping", state("stopping"), reason.InstanceUnacceptable},
		{"stopped", state("stopped"), reason.InstanceUnacceptable},
		{"an unknown state", state("Running"), reason.InstanceUnacceptable},
		{"in another network", func(w *fixture) { w.change(func(i *emulated.Instance) { i.VPC = "vpc-0ffffffffffffffff" }) },
			reason.InstanceUnacceptable},
		{"of another cluster", func(w *fixture) {
			w.change(func(i *emulated.Instance) { i.Tags = map[string]string{"kubernetes.io/cluster/demo2": "owned"} })
		}, reason.InstanceUnacceptable},
		{"started again since", func(w *fixture) {
			w.change(func(i *emulated.Instance) { i.Launch = i.Launch.Add(time.Hour) })
		}, reason.DocumentNotFresh},
		{"of another account", func(w *fixture) {
			w.cloud.Fail("DescribeInstances", emulated.Fault{Owner: "999999999999"})
		}, reason.InstanceUnacceptable},
		{"in another zone", func(w *fixture) { w.change(func(i *emulated.Instance) { i.Zone = region + "b" }) },
			reason.InstanceUnacceptable},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newFixture(t)
			if _, err := w.iid(w.machine); err != nil {
				t.Fatal("the honest machine: ", err)
			}
			// The document is genuine, and from before.
			document := w.cloud.RSA2048(w.machine.ID)
			c.change(w)
			w.now = w.now.Add(2 * time.Second) // what EC2 said before counts no more
			_, err := w.document(w.machine, document)
			refused(t, err, c.want)
		})
	}
	t.Run("pending", func(t *testing.T) {
		w := newFixture(t)
		state("pending")(w)
		if _, err := w.iid(w.machine); err != nil {
			t.Error(err)
		}
	})
}

func TestAnswerAboutAnotherInstance_IsATemporaryDenial(t *testing.T) {
	for name, f := range map[string]emulated.Fault{"two": {Double: true}, "a neighbor": {Extra: true},
		"another": {Other: "i-0ffffffffffffffff"}, "none": {Empty: true}} {
		w := newFixture(t)
		w.cloud.Fail("DescribeInstances", f)
		if _, err := w.iid(w.machine); err == nil || !reason.From(err).Code.Temporary() {
			t.Errorf("%s: %v", name, err)
		}
		w.cloud.Fail("DescribeInstances", emulated.Fault{})
		w.now = w.now.Add(2 * time.Second)
		if _, err := w.iid(w.machine); err != nil {
			t.Errorf("%s, and then only it: %v", name, err)
		}
	}
}

func state(s string) func(*fixture) {
	return func(w *fixture) { w.change(func(i *emulated.Instance) { i.State = s }) }
}

func (w *fixture) change(f func(*emulated.Instance)) { w.cloud.Change(w.machine.ID, f) }

func TestUnavailableProvider_IsATemporaryDenial(t *testing.T) {
	type call struct {
		operation string
		ask       func(*fixture) error
	}
	calls := []call{
		{"DescribeInstances", func(w *fixture) error { _, err := w.iid(w.machine); return err }},
		{"GetInstanceTpmEkPub", func(w *fixture) error {
			_, err := w.endorse(w.machine.ProviderID(), endorsementKeys()[0])
			return err
		}},
		{"GetCallerIdentity", func(w *fixture) error { _, err := w.sts(w.machine); return err }},
	}
	faults := map[string]emulated.Fault{
		"quota":          {Status: 503, Code: "RequestLimitExceeded"},
		"quota as 400":   {Status: 400, Code: "Throttling"},
		"internal error": {Status: 500, Code: "InternalError"},
		"no permission":  {Status: 403, Code: "UnauthorizedOperation"},
		"a redirect":     {Location: "https://127.0.0.1:1/"},
		"a page":         {Body: []byte("<html>sign in</html>"), Type: "text/html"},
		"JSON":           {Body: []byte(`{"x":"<DescribeInstancesResponse/>"}`), Type: "application/json"},
		"nothing":        {Body: []byte{}, Type: "text/xml"},
		"10 MB":          {Body: []byte("<a>" + strings.Repeat(" ", 10<<20)), Type: "text/xml"},
		"an answer cut off": {Body: []byte(`<?xml version="1.0"?><GetInstanceTpmEkPubResponse><instanceId>i-`),
			Type: "text/xml"},
		"another service": {Body: []byte("ok"), Type: "text/plain"},
	}
	for _, c := range calls {
		t.Run(c.operation, func(t *testing.T) {
			for name, f := range faults {
				t.Run(name, func(t *testing.T) {
					w := newFixture(t)
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
			t.Run("no server listens", func(t *testing.T) {
				w := newFixture(t)
				w.endpoint.Close()
				refused(t, c.ask(w), reason.ProviderUnavailable)
			})
			t.Run("a certificate of another server", func(t *testing.T) {
				w := newFixture(t)
				w.config.EC2.CA, w.config.STS.CA = "", ""
				w.start()
				refused(t, c.ask(w), reason.ProviderUnavailable)
				if n := w.cloud.Calls(""); n != 0 {
					t.Errorf("%d calls arrived", n)
				}
			})
			t.Run("the budget is used up", func(t *testing.T) {
				w := newFixture(t)
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

func TestAttack_T06_TheRelayFollowsNoRedirect(t *testing.T) {
	w := newFixture(t)
	if _, err := w.sts(w.machine); err != nil {
		t.Fatal(err)
	}
	var reached []string
	elsewhere := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		reached = append(reached, r.URL.String())
	}))
	defer elsewhere.Close()
	for _, f := range []emulated.Fault{{Location: elsewhere.URL},
		{Location: strings.Replace(elsewhere.URL, "http:", "https:", 1)}} {
		w.cloud.Fail("GetCallerIdentity", f)
		_, err := w.sts(w.machine)
		refused(t, err, reason.ProviderUnavailable)
	}
	if len(reached) != 0 {
		t.Errorf("followed to %q", reached)
	}
	// A host that is not the region's receives no request, whichever caller asks.
	_, _, _, err := w.provider.Caller().GetCallerIdentity(t.Context(),
		awssts.Request{Region: region, Host: "sts.eu-central-1.amazonaws.com.evil.example"})
	refused(t, err, reason.ProviderUnavailable)
	for what, status := range map[string]int{"too many": 429, "down": 502} {
		w.cloud.Fail("GetCallerIdentity", emulated.Fault{Status: status, Code: what})
		_, err := w.sts(w.machine)
		refused(t, err, reason.ProviderUnavailable)
	}
}

func TestAttack_T21_TheTPMOfAnotherInstance(t *testing.T) {
	w := newFixture(t)
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
	// EC2 can say nothing of a P-256 EK, good or bad.
	calls := w.cloud.Calls("")
	_, err = w.endorse(w.machine.ProviderID(), endorsementKeys()[2])
	refused(t, err, reason.EKNotEnrolled)
	if !strings.Contains(err.Error(), "mcs-attest.ek=rsa-2048") || w.cloud.Calls("") != calls {
		t.Error(err)
	}
	// The answers are about this instance and this key, or they are none.
	for name, f := range map[string]emulated.Fault{"another instance": {Other: "i-0ffffffffffffffff"},
		"no key": {Empty: true}} {
		other := w.cloud.Add(w.instance())
		w.cloud.Fail("GetInstanceTpmEkPub", f)
		if _, err := w.endorse(other.ProviderID(), mine); reason.From(err) == nil ||
			reason.From(err).Code != reason.ProviderUnavailable {
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
