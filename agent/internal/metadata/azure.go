package metadata

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// Azure is Azure's instance metadata service.
type Azure struct{ *service }

const (
	azureUserData = "the user data"
	azureCompute  = "the instance's resource id"
	azureAttested = "the attested document"
	azureIdentity = "a token of the managed identity"
)

// The paths and the versions of the API, which a request must name.
const (
	azureUserDataPath = "/metadata/instance/compute/userData"
	azureComputePath  = "/metadata/instance/compute"
	azureAttestedPath = "/metadata/attested/document"
	azureIdentityPath = "/metadata/identity/oauth2/token"

	azureInstanceVersion = "2021-01-01" // Ignition's
	azureAttestedVersion = "2020-09-01"
	azureIdentityVersion = "2018-02-01"
)

// NewAzure asks the service at base, "http://169.254.169.254".
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
		// Also for some time after an identity was assigned ("Identity not found").
		return &Fault{
			Problem:   "the machine has no managed identity, or more than one and none of the system's (HTTP status 400)",
			Hint:      "assign exactly one managed identity to the machine; it needs no roles",
			Temporary: true, Late: true,
		}
	case status == http.StatusBadRequest:
		return &Fault{
			Problem: "it does not understand the request (HTTP status 400)",
			Hint:    "a service that does not know this version of its API, as on Azure Stack, or a proxy in front of it",
		}
	case status == http.StatusForbidden:
		return &Fault{
			Problem: "access is refused (HTTP status 403)",
			Hint: "something forwards this machine's requests (X-Forwarded-For), or the machine's metadata security " +
				"protocol refuses the agent",
		}
	case status == http.StatusNotFound, status == http.StatusGone:
		// Azure answers both while the host is being serviced; Ignition and others
		// try again, too.
		return &Fault{
			Problem:   fmt.Sprintf("it is not there at the moment (HTTP status %d)", status),
			Hint:      "Azure says so while it services the host; if it stays, redeploy the machine",
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

// UserData is the instance's user data, decoded; empty if there is none, and
// then there may be custom data on a disk.
func (z *Azure) UserData(ctx context.Context) ([]byte, error) {
	raw, err := z.get(ctx, azureUserData, azureUserDataPath,
		url.Values{"api-version": {azureInstanceVersion}, "format": {"text"}})
	if err != nil || len(raw) == 0 {
		return nil, err
	}
	return z.decode(azureUserData, raw)
}

// Attested is the signed document with the nonce: PKCS #7 in DER.
func (z *Azure) Attested(ctx context.Context, nonce string) ([]byte, error) {
	raw, err := z.get(ctx, azureAttested, azureAttestedPath,
		url.Values{"api-version": {azureAttestedVersion}, "nonce": {nonce}})
	if err != nil {
		return nil, err
	}
	return z.parseAttested(raw)
}

func (z *Azure) parseAttested(raw []byte) ([]byte, error) {
	var document struct {
		Encoding  string `json:"encoding"`
		Signature string `json:"signature"`
	}
	if json.Unmarshal(raw, &document) != nil {
		return nil, z.wrong(azureAttested, "the answer is not JSON of that kind")
	}
	if document.Encoding != "pkcs7" {
		return nil, z.wrong(azureAttested, "its encoding is not pkcs7: %.40q", document.Encoding)
	}
	return z.pkcs7(azureAttested, []byte(document.Signature))
}

// IdentityToken is an access token of the machine's managed identity. Azure
// keeps it for up to a day, so it says nothing of now.
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

// ProviderID is the instance as a Machine names it: self-asserted.
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
		return "", z.wrong(azureCompute, "the answer is not JSON of that kind")
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
		return "", z.wrong(azureCompute, "it is not a virtual machine's: %.80q", document.ResourceID)
	}
	return "azure://" + document.ResourceID, nil
}
