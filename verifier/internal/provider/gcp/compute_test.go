// SPDX-License-Identifier: Apache-2.0

package gcp_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"
	"google.golang.org/api/compute/v1"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/option"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	emulator "github.com/mcs-attest/mcs-attest/testvm/cloud/gcp"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/provider/gcp"
)

func contextWithTimeout(t *testing.T, d time.Duration) (context.Context, context.CancelFunc) {
	t.Helper()
	return context.WithTimeout(t.Context(), d)
}

const worker = "gce://demo-1/europe-west1-b/worker-a"

// directory asks the emulator, with credentials of its own.
func (w *fixture) directory(t *testing.T, credentials string) *gcp.Directory {
	t.Helper()
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", credentials)
	d, err := gcp.NewDirectory([]string{"demo-1"}, config.Endpoint{URL: w.api.ComputeURL, CA: w.api.CAFile}, w.caller())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (w *fixture) worker(eks ...crypto.PublicKey) uint64 {
	return w.cloud.Add(emulator.Instance{Project: "demo-1", Zone: "europe-west1-b", Name: "worker-a", EKs: eks})
}

func spki(t *testing.T, key crypto.PublicKey) []byte {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func keyPair(t *testing.T) (*rsa.PublicKey, *ecdsa.PublicKey) {
	t.Helper()
	r, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	e, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return &r.PublicKey, &e.PublicKey
}

func TestGoogleReturnsTheKeysOfAnInstancesTPM(t *testing.T) {
	w := newFixture(t)
	r, e := keyPair(t)
	w.worker(r, e)
	for name, credentials := range map[string]string{"with a service account's key": w.api.Credentials,
		"with a federated token, as OpenShift has it": w.api.Federation} {
		t.Run(name, func(t *testing.T) {
			before := w.cloud.Calls(emulator.Compute)
			keys, err := w.directory(t, credentials).EndorsementKeys(t.Context(), worker, nil)
			if err != nil {
				t.Fatal(err)
			}
			if len(keys.SPKI) != 2 || !slices.Equal(keys.SPKI[0], spki(t, r)) || !slices.Equal(keys.SPKI[1], spki(t, e)) ||
				keys.InstanceID != "" {
				t.Errorf("%+v", keys)
			}
			if got := w.cloud.Calls(emulator.Compute) - before; got != 1 {
				t.Errorf("%d calls", got)
			}
		})
	}
}

func TestWhatTheDirectoryAnswersWithoutATPM(t *testing.T) {
	w := newFixture(t)
	d := w.directory(t, w.api.Credentials)
	w.worker()
	for _, c := range []struct {
		name, id string
		want     reason.Code
		calls    int
	}{
		{"an instance without a virtual TPM", worker, reason.EKUntrusted, 1},
		{"an instance that does not exist", "gce://demo-1/europe-west1-b/worker-b", reason.InstanceNotFound, 1},
		{"one in another zone", "gce://demo-1/europe-west1-c/worker-a", reason.InstanceNotFound, 1},
		{"one of another project", "gce://demo-2/europe-west1-b/worker-a", reason.AccountNotAllowed, 0},
		{"a path in the name", "gce://demo-1/europe-west1-b/worker-a/../../x", reason.InstanceNotFound, 0},
		{"a query in the name", "gce://demo-1/europe-west1-b/worker-a?x=y", reason.InstanceNotFound, 0},
		{"no name", "gce://demo-1/europe-west1-b/", reason.InstanceNotFound, 0},
		{"no project", "gce:///europe-west1-b/worker-a", reason.InstanceNotFound, 0},
	} {
		before := w.cloud.Calls(emulator.Compute)
		if keys, err := d.EndorsementKeys(t.Context(), c.id, nil); code(err) != c.want || len(keys.SPKI) != 0 {
			t.Errorf("%s: %+v, %v; want %v", c.name, keys, err, c.want)
		}
		if got := w.cloud.Calls(emulator.Compute) - before; got != c.calls {
			t.Errorf("%s: %d calls, want %d", c.name, got, c.calls)
		}
	}
	for _, other := range []string{"", "aws:///eu-west-1a/i-0123", "GCE://demo-1/a/b", "azure:///subscriptions/x"} {
		if _, err := d.EndorsementKeys(t.Context(), other, nil); !errors.Is(err, tpm2.ErrNotMine) {
			t.Errorf("%q: %v", other, err)
		}
	}
}

func TestUnavailableDirectory_IsATemporaryDenial(t *testing.T) {
	w := newFixture(t)
	r, _ := keyPair(t)
	w.worker(r)
	d := w.directory(t, w.api.Credentials)
	for name, fault := range map[string]emulator.Fault{
		"403": {Status: http.StatusForbidden}, "429": {Status: http.StatusTooManyRequests, RetryAfter: "30"},
		"500": {Status: http.StatusInternalServerError},
		"503": {Status: http.StatusServiceUnavailable}, "400": {Status: http.StatusBadRequest}, "off": {Off: true},
		"elsewhere": {Redirect: "https://www.example.com/"}, "a page": {Body: []byte("<html>")},
		"a megabyte": {Body: []byte(`{"kind":"` + strings.Repeat("a", 1<<20) + `"}`)},
		"a key that is not": {Body: []byte(
			`{"encryptionKey":{"ekPub":"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"}}`)},
		"a certificate": {Body: []byte(
			`{"encryptionKey":{"ekPub":"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"}}`)},
	} {
		t.Run(name, func(t *testing.T) {
			w.cloud.Fail(emulator.Compute, fault)
			w.clock.Add(2 * time.Second) // past the answer that is kept
			before := w.cloud.Calls(emulator.Compute)
			if keys, err := d.EndorsementKeys(t.Context(), worker, nil); code(err) != reason.ProviderUnavailable ||
				len(keys.SPKI) != 0 {
				t.Errorf("%+v, %v", keys, err)
			}
			if _, err := d.EndorsementKeys(t.Context(), worker, nil); code(err) != reason.ProviderUnavailable {
				t.Errorf("again: %v", err)
			}
			// A closed connection may be dialed once more by net/http.
			if got := w.cloud.Calls(emulator.Compute) - before; got != 1 && (name != "off" || got > 2) {
				t.Errorf("%d calls, want 1", got)
			}
		})
	}
	w.cloud.Heal(emulator.Compute)
	w.clock.Add(2 * time.Second)
	if keys, err := d.EndorsementKeys(t.Context(), worker, nil); err != nil || len(keys.SPKI) != 1 {
		t.Errorf("after all that: %+v, %v", keys, err)
	}
}

func TestCredentialsAreReadAtTheFirstQuery(t *testing.T) {
	w := newFixture(t)
	r, _ := keyPair(t)
	w.worker(r)
	d := w.directory(t, "/nonexistent/credentials.json")
	if _, err := d.EndorsementKeys(t.Context(), worker, nil); code(err) != reason.ProviderUnavailable ||
		!strings.Contains(err.Error(), "credentials") {
		t.Errorf("%v", err)
	}
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", w.api.Credentials)
	w.cloud.Fail(emulator.Token, emulator.Fault{Status: http.StatusBadRequest})
	w.clock.Add(2 * time.Second)
	if _, err := d.EndorsementKeys(t.Context(), worker, nil); code(err) != reason.ProviderUnavailable ||
		w.cloud.Calls(emulator.Compute) != 0 {
		t.Errorf("%v", err)
	}
	w.cloud.Heal(emulator.Token)
	w.clock.Add(2 * time.Second)
	if _, err := d.EndorsementKeys(t.Context(), worker, nil); err != nil {
		t.Error(err)
	}
	calls := w.cloud.Calls(emulator.Token)
	w.clock.Add(2 * time.Second)
	if _, err := d.EndorsementKeys(t.Context(), worker, nil); err != nil || w.cloud.Calls(emulator.Token) != calls {
		t.Errorf("%v; %d more tokens", err, w.cloud.Calls(emulator.Token)-calls)
	}
}

// T10: the name is what is asked for, and answers are not kept under it.
func TestAttack_T10_AReusedNameHasTheTPMOfItsNewInstance(t *testing.T) {
	w := newFixture(t)
	first, _ := keyPair(t)
	second, _ := keyPair(t)
	d := w.directory(t, w.api.Credentials)
	id := w.worker(first)
	if keys, err := d.EndorsementKeys(t.Context(), worker, nil); err != nil ||
		!slices.Equal(keys.SPKI[0], spki(t, first)) {
		t.Fatalf("%+v, %v", keys, err)
	}
	w.cloud.Remove(id)
	w.worker(second)
	keys, err := d.EndorsementKeys(t.Context(), worker, nil)
	if err != nil || len(keys.SPKI) != 1 || !slices.Equal(keys.SPKI[0], spki(t, second)) {
		t.Errorf("%+v, %v", keys, err)
	}
}

// Google's own client of the API, with the same credentials, is the oracle: both get
// the same keys of the same instance, by name, and the same no.
func TestDirectory_AgreesWithGooglesOwnClient(t *testing.T) {
	w := newFixture(t)
	r, e := keyPair(t)
	w.worker(r, e)
	d := w.directory(t, w.api.Credentials)
	raw, err := os.ReadFile(w.api.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(raw)
	plain := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots,
		MinVersion: tls.VersionTLS12}}}
	ctx := context.WithValue(t.Context(), oauth2.HTTPClient, plain)
	credentials, err := google.FindDefaultCredentials(ctx, compute.ComputeReadonlyScope)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &oauth2.Transport{Base: plain.Transport, Source: credentials.TokenSource}}
	service, err := compute.NewService(ctx, option.WithHTTPClient(client),
		option.WithEndpoint(w.api.ComputeURL+"/compute/v1/"))
	if err != nil {
		t.Fatal(err)
	}
	keys, err := d.EndorsementKeys(t.Context(), worker, nil)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := service.Instances.GetShieldedInstanceIdentity("demo-1", "europe-west1-b",
		"worker-a").Context(t.Context()).Do()
	if err != nil {
		t.Fatal(err)
	}
	for i, text := range []string{theirs.EncryptionKey.EkPub, theirs.EccP256EncryptionKey.EkPub} {
		if block, _ := pem.Decode([]byte(text)); block == nil || !slices.Equal(block.Bytes, keys.SPKI[i]) {
			t.Errorf("key %d: Google's client has %s", i, text)
		}
	}
	_, err = d.EndorsementKeys(t.Context(), "gce://demo-1/europe-west1-b/worker-b", nil)
	_, other := service.Instances.GetShieldedInstanceIdentity("demo-1", "europe-west1-b",
		"worker-b").Context(t.Context()).Do()
	var answer *googleapi.Error
	if code(err) != reason.InstanceNotFound || !errors.As(other, &answer) || answer.Code != http.StatusNotFound {
		t.Errorf("%v; Google's client: %v", err, other)
	}
}
