// SPDX-License-Identifier: Apache-2.0

package metadata_test

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/agent/internal/metadata"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/aws"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/azure"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/gcp"
)

var update = flag.Bool("update", false, "write testdata/sentences.txt")

const sentences = "testdata/sentences.txt"

// ask is one request to a metadata service.
type ask func(context.Context, string, metadata.Patience) error

// on returns the ask of one method of a client.
func on[S, T any](open func(string, metadata.Patience) (S, error), get func(S, context.Context) (T, error)) ask {
	return func(ctx context.Context, base string, p metadata.Patience) error {
		s, err := open(base, p)
		if err == nil {
			_, err = get(s, ctx)
		}
		return err
	}
}

var (
	awsUserData     = on(metadata.NewAWS, (*metadata.AWS).UserData)
	awsSigned       = on(metadata.NewAWS, (*metadata.AWS).SignedIdentity)
	awsInstance     = on(metadata.NewAWS, (*metadata.AWS).Instance)
	awsCredentials  = on(metadata.NewAWS, (*metadata.AWS).Credentials)
	gcpUserData     = on(metadata.NewGCP, (*metadata.GCP).UserData)
	gcpProviderID   = on(metadata.NewGCP, (*metadata.GCP).ProviderID)
	azureUserData   = on(metadata.NewAzure, (*metadata.Azure).UserData)
	azureProviderID = on(metadata.NewAzure, (*metadata.Azure).ProviderID)

	gcpIdentity = on(metadata.NewGCP, func(s *metadata.GCP, ctx context.Context) ([]byte, error) {
		return s.IdentityToken(ctx, "https://example.com/")
	})
	azureAttested = on(metadata.NewAzure, func(s *metadata.Azure, ctx context.Context) ([]byte, error) {
		return s.Attested(ctx, "nonce")
	})
	azureIdentity = on(metadata.NewAzure, func(s *metadata.Azure, ctx context.Context) ([]byte, error) {
		return s.IdentityToken(ctx, "api://mcs-attest")
	})
)

// Each failure of a metadata service has exactly one sentence and one hint. testdata/sentences.txt
// lists them, and docs/troubleshooting.md explains them.
func TestSentences(t *testing.T) {
	var got strings.Builder
	say := func(name string, h http.Handler, p metadata.Patience, a ask) {
		t.Helper()
		base := ""
		if h == nil {
			base = "http://127.0.0.1:1"
		} else {
			base = serve(t, h)
		}
		f := fault(t, a(t.Context(), base, p))
		text := f.Error() + "\n  hint: " + f.Hint
		for _, address := range []string{strings.TrimPrefix(base, "http://"), "127.0.0.1"} {
			text = strings.ReplaceAll(text, address, "169.254.169.254")
		}
		fmt.Fprintf(&got, "# %s\n%s\n  again: %t\n", name, text, f.Temporary)
	}
	status := func(code int) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) })
	}

	onAWS := func(name string, p metadata.Patience, a ask, change func(*aws.Instance)) {
		t.Helper()
		i, c := onAWS(t, change)
		say("aws: "+name, c.Metadata(i.ID), p, a)
	}
	say("aws: nothing listens", nil, once, awsUserData)
	onAWS("the response with the token is lost", brief, awsUserData, func(i *aws.Instance) { i.Faults.HopLimit = true })
	onAWS("the service is disabled", once, awsUserData, func(i *aws.Instance) { i.Faults.Off = true })
	onAWS("no tokens", once, awsUserData, func(i *aws.Instance) { i.Faults.NoTokens = true })
	onAWS("too many requests", once, awsUserData, func(i *aws.Instance) { i.Faults.Busy = 1 << 20 })
	onAWS("an error of the service", once, awsUserData,
		func(i *aws.Instance) { i.Faults.Busy, i.Faults.BusyStatus = 1<<20, 500 })
	onAWS("no user data", once, awsUserData, func(i *aws.Instance) { i.UserData = nil })
	onAWS("no signed document", once, awsSigned, func(i *aws.Instance) {
		i.Faults.Missing = []string{"dynamic/instance-identity/rsa2048"}
	})
	replace := func(path, body string) func(*aws.Instance) {
		return func(i *aws.Instance) { i.Faults.Replace = map[string][]byte{path: []byte(body)} }
	}
	onAWS("a signed document that is not base64", once, awsSigned, replace("dynamic/instance-identity/rsa2048", "%%%"))
	onAWS("a signed document in hexadecimal", once, awsSigned,
		replace("dynamic/instance-identity/rsa2048", "308006092a864886"))
	onAWS("an empty signed document", once, awsSigned, replace("dynamic/instance-identity/rsa2048", ""))
	onAWS("a document that is not JSON", once, awsInstance, replace("dynamic/instance-identity/document", "<html>"))
	onAWS("a document with another name", once, awsInstance, replace("dynamic/instance-identity/document",
		`{"region":"eu-central-1","availabilityZone":"eu-central-1a","instanceId":"../i-1"}`))
	onAWS("no role", once, awsCredentials, func(i *aws.Instance) { i.Role = "" })
	onAWS("credentials that EC2 cannot get", once, awsCredentials, replace("meta-data/iam/security-credentials/worker",
		`{"Code":"AssumeRoleUnauthorizedAccess","Message":"EC2 cannot assume the role"}`))
	onAWS("no credentials of the role yet", once, awsCredentials, func(i *aws.Instance) {
		i.Faults.Missing = []string{"meta-data/iam/security-credentials/worker"}
	})
	onAWS("credentials without a part", once, awsCredentials, replace("meta-data/iam/security-credentials/worker",
		`{"Code":"Success","AccessKeyId":"ASIA","Token":"x"}`))

	onGCP := func(name string, p metadata.Patience, a ask, change func(*gcp.Instance), faults map[gcp.Route]gcp.Fault) {
		t.Helper()
		c, id := onGCP(t, change)
		for route, f := range faults {
			c.Fail(route, f)
		}
		say("gcp: "+name, c.Metadata(id), p, a)
	}
	say("gcp: nothing listens", nil, once, gcpUserData)
	onGCP("no answer", brief, gcpUserData, nil, map[gcp.Route]gcp.Fault{gcp.Metadata: {Delay: 1 << 40}})
	onGCP("the connection breaks", once, gcpUserData, nil, map[gcp.Route]gcp.Fault{gcp.Metadata: {Off: true}})
	onGCP("too many requests", once, gcpUserData, nil, map[gcp.Route]gcp.Fault{gcp.Metadata: {Status: 429}})
	onGCP("an error of the server", once, gcpIdentity, nil, map[gcp.Route]gcp.Fault{gcp.Identity: {Status: 503}})
	onGCP("no user data", once, gcpUserData, func(i *gcp.Instance) { i.UserData = nil }, nil)
	onGCP("no service account", once, gcpIdentity, func(i *gcp.Instance) { i.ServiceAccount = "-" }, nil)
	onGCP("a token that is an HTML page", once, gcpIdentity, nil,
		map[gcp.Route]gcp.Fault{gcp.Identity: {Body: []byte("<html> </html>")}})
	onGCP("an empty token", once, gcpIdentity, nil, map[gcp.Route]gcp.Fault{gcp.Identity: {Body: []byte{}}})
	onGCP("an invalid name", once, gcpProviderID, func(i *gcp.Instance) { i.Name = "a b" }, nil)
	say("gcp: another service answers", status(http.StatusOK), once, gcpUserData)
	say("gcp: the service redirects", http.RedirectHandler("http://127.0.0.1:1/", http.StatusFound), once, gcpUserData)

	onAzure := func(name string, p metadata.Patience, a ask, change func(*azure.Instance)) {
		t.Helper()
		c, i := onAzure(t, change)
		say("azure: "+name, c.Metadata(i), p, a)
	}
	say("azure: nothing listens", nil, once, azureAttested)
	onAzure("no answer", brief, azureAttested, func(i *azure.Instance) { i.Metadata.Off = true })
	onAzure("too many requests", once, azureAttested, func(i *azure.Instance) { i.Metadata.Throttled = 1 << 20 })
	onAzure("the host is serviced", once, azureAttested, func(i *azure.Instance) { i.Metadata.Gone = 1 << 20 })
	onAzure("an error of the service", once, azureAttested, func(i *azure.Instance) { i.Metadata.Broken = 1 << 20 })
	onAzure("not found", once, azureUserData, func(i *azure.Instance) { i.Metadata.NotFound = true })
	say("azure: a bad request", status(http.StatusBadRequest), once, azureAttested)
	say("azure: access is denied", status(http.StatusForbidden), once, azureAttested)
	onAzure("user data in another encoding", once, azureUserData,
		func(i *azure.Instance) { i.Metadata.WrongBase64 = true })
	onAzure("a document in another encoding", once, azureAttested,
		func(i *azure.Instance) { i.Metadata.WrongBase64 = true })
	answer := func(body string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) })
	}
	say("azure: a document that is not JSON", answer("<html>"), once, azureAttested)
	say("azure: a document whose encoding is not pkcs7", answer(`{"encoding":"jws","signature":"MAA="}`),
		once, azureAttested)
	say("azure: an invalid resource id", answer(`{"resourceId":"/subscriptions/x/../y"}`), once, azureProviderID)
	onAzure("no managed identity", once, azureIdentity, func(i *azure.Instance) { i.Identity = "" })
	say("azure: no token in the answer", answer(`{}`), once, azureIdentity)

	if *update {
		ok(t, os.WriteFile(sentences, []byte(got.String()), 0o644))
	}
	want, err := os.ReadFile(sentences)
	ok(t, err)
	if got.String() != string(want) {
		t.Errorf("%s has other sentences (-update writes it):\n%s", sentences, difference(string(want), got.String()))
	}
}

// difference returns the first lines that differ.
func difference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(w), len(g)) {
		if w[i] != g[i] {
			return fmt.Sprintf("line %d\nwant %s\ngot  %s", i+1, w[i], g[i])
		}
	}
	return fmt.Sprintf("%d lines, want %d", len(g), len(w))
}

// The page has every sentence that an administrator may see.
func TestSentencesAreExplained(t *testing.T) {
	page, err := os.ReadFile("../../../docs/troubleshooting.md")
	ok(t, err)
	raw, err := os.ReadFile(sentences)
	ok(t, err)
	for line := range strings.Lines(string(raw)) {
		if strings.HasPrefix(line, "#") || strings.HasPrefix(line, " ") {
			continue
		}
		// The form is "CLOUD metadata service, asked for THING: PROBLEM". Numbers and quoted text
		// may differ.
		_, problem, found := strings.Cut(strings.TrimSpace(line), ": ")
		for _, end := range []string{` "`, ":", " (HTTP"} {
			problem, _, _ = strings.Cut(problem, end)
		}
		problem = strings.TrimRight(problem, " 0123456789")
		if !found || !strings.Contains(string(page), problem) {
			t.Errorf("the page does not have %q", problem)
		}
	}
}
