// SPDX-License-Identifier: Apache-2.0

package metadata_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/agent/internal/metadata"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/aws"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/azure"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/gcp"
)

var (
	// calm is for services that answer. It does not depend on their speed.
	calm = metadata.Patience{Try: 30 * time.Second, Pause: time.Millisecond, Total: 30 * time.Second}
	// brief is for services that do not answer.
	brief = metadata.Patience{Try: 100 * time.Millisecond, Pause: time.Millisecond, Total: time.Millisecond}
	// once is for services that always answer with a temporary failure.
	once = metadata.Patience{Try: 30 * time.Second, Pause: time.Millisecond, Total: time.Millisecond}
)

func serve(t *testing.T, h http.Handler) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func fault(t *testing.T, err error) *metadata.Fault {
	t.Helper()
	var f *metadata.Fault
	if !errors.As(err, &f) {
		t.Fatalf("error %v is not a fault", err)
	}
	return f
}

func newAWS(t *testing.T, h http.Handler, p metadata.Patience) *metadata.AWS {
	t.Helper()
	s, err := metadata.NewAWS(serve(t, h), p)
	ok(t, err)
	return s
}

func newGCP(t *testing.T, h http.Handler, p metadata.Patience) *metadata.GCP {
	t.Helper()
	s, err := metadata.NewGCP(serve(t, h), p)
	ok(t, err)
	return s
}

func newAzure(t *testing.T, h http.Handler, p metadata.Patience) *metadata.Azure {
	t.Helper()
	s, err := metadata.NewAzure(serve(t, h), p)
	ok(t, err)
	return s
}

// One cloud of each kind is enough: creating their keys takes a second.
var (
	theAWS   = sync.OnceValue(func() *aws.Cloud { return aws.New(aws.Options{}) })
	theGCP   = sync.OnceValues(func() (*gcp.Cloud, error) { return gcp.New(gcp.Options{}) })
	theAzure = sync.OnceValues(azure.New)
)

// onAWS adds an instance to the emulator.
func onAWS(t *testing.T, change func(*aws.Instance)) (aws.Instance, *aws.Cloud) {
	t.Helper()
	i := aws.Instance{Zone: "eu-central-1a", Role: "worker", UserData: []byte("user data")}
	if change != nil {
		change(&i)
	}
	return theAWS().Add(i), theAWS()
}

// onGCP also ends the faults of earlier tests.
func onGCP(t *testing.T, change func(*gcp.Instance)) (*gcp.Cloud, uint64) {
	t.Helper()
	c, err := theGCP()
	ok(t, err)
	c.Heal(gcp.Metadata)
	c.Heal(gcp.Identity)
	i := gcp.Instance{Project: "example.com:demo", Zone: "europe-west1-b", Name: "worker-a", UserData: []byte("user data")}
	if change != nil {
		change(&i)
	}
	return c, c.Add(i)
}

func onAzure(t *testing.T, change func(*azure.Instance)) (*azure.Cloud, *azure.Instance) {
	t.Helper()
	c, err := theAzure()
	ok(t, err)
	i := &azure.Instance{Name: "worker-a", ResourceGroup: "demo-rg", VMID: "02aab8a4-74ef-476e-8182-f6d2ba4166a6",
		UserData: []byte("user data"), Identity: "system"}
	if change != nil {
		change(i)
	}
	ok(t, c.Add(i))
	return c, i
}
