// SPDX-License-Identifier: Apache-2.0

package platform_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/agent/internal/metadata"
	"github.com/mcs-attest/mcs-attest/agent/internal/platform"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/aws"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/azure"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/gcp"
)

// Ignition's rules for user data from a metadata service.
func TestUserDataFromMetadata(t *testing.T) {
	const pointer = `{"ignition":{"version":"3.4.0"}}`
	onAWS := func(change func(*aws.Instance)) http.Handler {
		c := aws.New(aws.Options{})
		i := aws.Instance{UserData: []byte(pointer)}
		change(&i)
		return c.Metadata(c.Add(i).ID)
	}
	theGCP, err := gcp.New(gcp.Options{})
	must(t, err)
	onGCP := func(change func(*gcp.Instance), f *gcp.Fault) http.Handler {
		i := gcp.Instance{Project: "demo", Zone: "europe-west1-b", Name: "worker-a", UserData: []byte(pointer)}
		change(&i)
		id := theGCP.Add(i)
		theGCP.Heal(gcp.Metadata)
		if f != nil {
			theGCP.Fail(gcp.Metadata, *f)
		}
		return theGCP.Metadata(id)
	}
	theAzure, err := azure.New()
	must(t, err)
	onAzure := func(change func(*azure.Instance)) http.Handler {
		i := &azure.Instance{Name: "worker-a", ResourceGroup: "demo-rg", VMID: "02aab8a4-74ef-476e-8182-f6d2ba4166a6",
			UserData: []byte(pointer)}
		change(i)
		must(t, theAzure.Add(i))
		return theAzure.Metadata(i)
	}
	calm := metadata.Patience{Try: 30 * time.Second, Pause: time.Millisecond, Total: 30 * time.Second}
	brief := metadata.Patience{Try: 100 * time.Millisecond, Pause: time.Millisecond, Total: time.Millisecond}
	for _, c := range []struct {
		name, id string
		node     func() http.Handler
		patience metadata.Patience
		want     string
		err      error // where want is empty; nil: a fault of the service
	}{
		{"AWS", "aws", func() http.Handler { return onAWS(func(*aws.Instance) {}) }, calm, pointer, nil},
		{"AWS without user data", "aws", func() http.Handler { return onAWS(func(i *aws.Instance) { i.UserData = nil }) },
			calm, "", platform.ErrNone},
		{"AWS with empty user data", "aws", func() http.Handler {
			return onAWS(func(i *aws.Instance) { i.UserData = []byte{} })
		}, calm, "", platform.ErrNone},
		{"AWS with gzip, which Ignition does not unpack either", "aws", func() http.Handler {
			return onAWS(func(i *aws.Instance) { i.UserData = []byte("\x1f\x8b") })
		}, calm, "\x1f\x8b", nil},
		{"AWS is busy at first", "aws", func() http.Handler { return onAWS(func(i *aws.Instance) { i.Faults.Busy = 4 }) },
			calm, pointer, nil},
		{"AWS breaks at first", "aws", func() http.Handler {
			return onAWS(func(i *aws.Instance) { i.Faults.Busy, i.Faults.BusyStatus = 4, http.StatusInternalServerError })
		}, calm, pointer, nil},
		{"AWS is slow", "aws", func() http.Handler { return onAWS(func(i *aws.Instance) { i.Faults.Delay = time.Hour }) },
			brief, "", nil},
		{"AWS with its service off", "aws", func() http.Handler {
			return onAWS(func(i *aws.Instance) { i.Faults.Off = true })
		}, calm, "", nil},
		{"AWS with lost tokens", "aws", func() http.Handler {
			return onAWS(func(i *aws.Instance) { i.Faults.HopLimit = true })
		}, brief, "", nil},
		{"AWS with only version 1", "aws", func() http.Handler {
			return onAWS(func(i *aws.Instance) { i.Faults.NoTokens, i.Faults.TokensOptional = true, true })
		}, calm, "", nil},
		{"Google Cloud", "gcp", func() http.Handler { return onGCP(func(*gcp.Instance) {}, nil) }, calm, pointer, nil},
		{"Google Cloud without user data", "gcp", func() http.Handler {
			return onGCP(func(i *gcp.Instance) { i.UserData = nil }, nil)
		}, calm, "", platform.ErrNone},
		{"Google Cloud with empty user data", "gcp", func() http.Handler {
			return onGCP(func(i *gcp.Instance) { i.UserData = []byte{} }, nil)
		}, calm, "", platform.ErrNone},
		{"Google Cloud is busy at first", "gcp", func() http.Handler {
			return onGCP(func(*gcp.Instance) {}, &gcp.Fault{Status: http.StatusTooManyRequests, Times: 3})
		}, calm, pointer, nil},
		{"Google Cloud is slow", "gcp", func() http.Handler {
			return onGCP(func(*gcp.Instance) {}, &gcp.Fault{Delay: time.Hour})
		}, brief, "", nil},
		{"Google Cloud denies access", "gcp", func() http.Handler {
			return onGCP(func(*gcp.Instance) {}, &gcp.Fault{Status: http.StatusForbidden})
		}, calm, "", nil},
		{"Azure", "azure", func() http.Handler { return onAzure(func(*azure.Instance) {}) }, calm, pointer, nil},
		{"Azure is busy at first", "azure", func() http.Handler {
			return onAzure(func(i *azure.Instance) { i.Metadata.Throttled = 3 })
		}, calm, pointer, nil},
		{"Azure is being serviced at first", "azure", func() http.Handler {
			return onAzure(func(i *azure.Instance) { i.Metadata.Gone = 3 })
		}, calm, pointer, nil},
		{"Azure answers 404, which is temporary", "azure",
			func() http.Handler { return onAzure(func(i *azure.Instance) { i.Metadata.NotFound = true }) },
			metadata.Patience{Try: 30 * time.Second, Pause: time.Millisecond, Total: time.Millisecond}, "", nil},
		{"Azure does not answer", "azure", func() http.Handler {
			return onAzure(func(i *azure.Instance) { i.Metadata.Off = true })
		}, brief, "", nil},
		{"Azure in another encoding", "azure", func() http.Handler {
			return onAzure(func(i *azure.Instance) { i.Metadata.WrongBase64 = true })
		}, calm, "", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			platform.SetPatience(t, c.patience)
			r := newRoot(t, "quiet")
			s := httptest.NewServer(c.node())
			defer s.Close()
			r.p.Metadata = s.URL
			data, err := r.find(c.id)
			var fault *metadata.Fault
			switch {
			case c.want != "":
				if err != nil || string(data.Raw) != c.want {
					t.Errorf("have %q and error %v", data.Raw, err)
				}
			case c.err != nil && !errors.Is(err, c.err), c.err == nil && !errors.As(err, &fault):
				t.Errorf("have %q and error %v", data.Raw, err)
			}
		})
	}
}

// A user.ign takes precedence; the metadata service is then not asked.
func TestUserIgnPrecedesTheMetadataService(t *testing.T) {
	for _, id := range []string{"aws", "gcp", "azure"} {
		r := newRoot(t, "quiet")
		r.p.Metadata = "http://127.0.0.1:1"
		r.write(r.p.IgnitionSystem+"/user.ign", "from usr")
		data, err := r.find(id)
		if err != nil || string(data.Raw) != "from usr" || !strings.HasSuffix(data.From, "user.ign") {
			t.Errorf("%s: have %q and error %v", id, data.Raw, err)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
