// SPDX-License-Identifier: Apache-2.0

package metadata

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// Azure is a client of Azure's instance metadata service.
type Azure struct{ *service }

const (
	azureUserData = "the user data"
	azureCompute  = "the instance's resource id"
	azureAttested = "the attested document"
	azureIdentity = "a token of the managed identity"
)

// The paths, and the API versions that each request must name.
const (
	azureUserDataPath = "/metadata/instance/compute/userData"
	azureComputePath  = "/metadata/instance/compute"
	azureAttestedPath = "/metadata/attested/document"
	azureIdentityPath = "/metadata/identity/oauth2/token"

	azureInstanceVersion = "2021-01-01" // Ignition's
	azureAttestedVersion = "2020-09-01"
	azureIdentityVersion = "2018-02-01"
)

// NewAzure returns a client of the service at base, for example "http://169.254.169.254".
func NewAzure(base string, p Patience) (*Azure, error) {
	s, err := newService("Azure", base, p)
	if err != nil {
		return nil, err
	}
	s.explain = explainAzure
	return &Azure{s}, nil
}

func explainAzure(path string, status int) *Fault {
	switch {
	case status == http.StatusBadRequest && path == azureIdentityPath:
		// Azure also returns this for some time after an identity was assigned ("Identity not
		// found").
		return &Fault{
			Problem:   "the machine has no managed identity, or several and no system-assigned one (HTTP status 400)",
			Hint:      "assign exactly one managed identity to the machine; it needs no roles",
			Temporary: true, Late: true,
		}
	case status == http.StatusBadRequest:
		return &Fault{
			Problem: "it does not understand the request (HTTP status 400)",
			Hint:    "the service does not support this API version, as on Azure Stack, or a proxy is in front of it",
		}
	case status == http.StatusForbidden:
		return &Fault{
			Problem: "access is denied (HTTP status 403)",
			Hint: "something forwards this machine's requests (X-Forwarded-For), or the machine's metadata security " +
				"protocol denies the agent access",
		}
	case status == http.StatusNotFound, status == http.StatusGone:
		// Azure returns both while it services the host. Ignition and other clients retry, too.
		return &Fault{
			Problem:   fmt.Sprintf("it is temporarily unavailable (HTTP status %d)", status),
			Hint:      "Azure returns this while it services the host; if the error persists, redeploy the machine",
			Temporary: true, Absent: status == http.StatusNotFound,
		}
	}
	return nil
}

func (z *Azure) get(ctx context.Context, what, path string, query url.Values) ([]byte, error) {
	client := z.client()
	return z.ask(ctx, what, func(ctx context.Context) ([]byte, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://169.254.169.254"+path+"?"+query.Encode(), nil)
		if err != nil {
			return nil, err
		}
		req.Header.Set("Metadata", "true")
		resp, err := client.Do(req)
		if err != nil {
			return nil, err
		}
		defer func() { _ = resp.Body.Close() }()
		return io.ReadAll(resp.Body)
	})
}

// UserData returns the instance's decoded user data. It is empty if there is none; the machine may
// then have custom data on a disk.
func (z *Azure) UserData(ctx context.Context) ([]byte, error) {
	raw, err := z.get(ctx, azureUserData, azureUserDataPath,
		url.Values{"api-version": {azureInstanceVersion}, "format": {"text"}})
	if err != nil || len(raw) == 0 {
		return nil, err
	}
	return z.decode(azureUserData, raw)
}

// Attested returns the signed document with the nonce, as PKCS #7 in DER. The fault is temporary if the
// document has another nonce.
func (z *Azure) Attested(ctx context.Context, nonce string) ([]byte, error) {
	raw, err := z.get(ctx, azureAttested, azureAttestedPath,
		url.Values{"api-version": {azureAttestedVersion}, "nonce": {nonce}})
	if err != nil {
		return nil, err
	}
	document, err := z.parseAttested(raw)
	if err == nil && !bytes.Contains(document, []byte(nonce)) {
		// Azure has returned cached documents (https://github.com/MicrosoftDocs/azure-docs/issues/43938).
		return nil, &Fault{Cloud: z.cloud, What: azureAttested, Problem: "the document has another nonce", Temporary: true}
	}
	return document, err
}

func (z *Azure) parseAttested(raw []byte) ([]byte, error) {
	var document struct {
		Encoding  string `json:"encoding"`
		Signature string `json:"signature"`
	}
	if json.Unmarshal(raw, &document) != nil {
		return nil, z.wrong(azureAttested, "the answer is not valid JSON of the expected form")
	}
	if document.Encoding != "pkcs7" {
		return nil, z.wrong(azureAttested, "its encoding is not pkcs7: %.40q", document.Encoding)
	}
	return z.pkcs7(azureAttested, []byte(document.Signature))
}

// IdentityToken returns an access token of the machine's managed identity. Azure caches it for up
// to a day, so it proves nothing about the current time.
func (z *Azure) IdentityToken(ctx context.Context, resource string) ([]byte, error) {
	raw, err := z.get(ctx, azureIdentity, azureIdentityPath,
		url.Values{"api-version": {azureIdentityVersion}, "resource": {resource}})
	if err != nil {
		return nil, err
	}
	return z.parseToken(raw)
}

func (z *Azure) parseToken(raw []byte) ([]byte, error) {
	var document struct {
		AccessToken string `json:"access_token"`
	}
	if json.Unmarshal(raw, &document) != nil || !isToken(document.AccessToken) {
		return nil, z.wrong(azureIdentity, "the answer has no token")
	}
	return []byte(document.AccessToken), nil
}

// ProviderID returns the instance's id in the format of a Machine's spec.providerID. It is
// self-asserted.
func (z *Azure) ProviderID(ctx context.Context) (string, error) {
	raw, err := z.get(ctx, azureCompute, azureComputePath,
		url.Values{"api-version": {azureInstanceVersion}, "format": {"json"}})
	if err != nil {
		return "", err
	}
	return z.parseCompute(raw)
}

func (z *Azure) parseCompute(raw []byte) (string, error) {
	var document struct {
		ResourceID string `json:"resourceId"`
	}
	if json.Unmarshal(raw, &document) != nil {
		return "", z.wrong(azureCompute, "the answer is not valid JSON of the expected form")
	}
	// "/subscriptions/ID/resourceGroups/NAME/providers/Microsoft.Compute/virtualMachines/NAME"
	parts := strings.Split(document.ResourceID, "/")
	want := []string{"", "subscriptions", "", "resourceGroups", "", "providers", "Microsoft.Compute",
		"virtualMachines", ""}
	good := len(parts) == len(want)
	for i := 1; good && i < len(want); i++ {
		good = isName(parts[i]) && (want[i] == "" || strings.EqualFold(parts[i], want[i]))
	}
	if !good || parts[0] != "" {
		return "", z.wrong(azureCompute, "not the id of a virtual machine: %.80q", document.ResourceID)
	}
	return "azure://" + document.ResourceID, nil
}
