// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"

	"github.com/mcs-attest/mcs-attest/testvm/cloud/tlsserver"
)

// subjectToken represents the projected token of the verifier's Kubernetes service account.
const subjectToken = "emulated-projected-service-account-token"

// Endpoints are the address of the API and what the verifier needs to use it.
type Endpoints struct {
	// KeysURL and ComputeURL are for the verifier's configuration
	// (gcp.keys, gcp.compute), with CAFile.
	KeysURL, ComputeURL, CAFile string
	// Credentials is for GOOGLE_APPLICATION_CREDENTIALS: a service account's key.
	// Federation is the alternative that OpenShift uses if there is no such key.
	Credentials, Federation string

	*tlsserver.Server
}

// Serve listens on 127.0.0.1 with TLS, and writes the CA and the credentials into a folder.
func (c *Cloud) Serve(dir string) (*Endpoints, error) {
	server, err := tlsserver.Start(c.API())
	if err != nil {
		return nil, err
	}
	e := &Endpoints{Server: server, CAFile: filepath.Join(dir, "google-ca.pem"),
		Credentials: filepath.Join(dir, "google-credentials.json"), Federation: filepath.Join(dir, "google-federation.json")}
	e.KeysURL, e.ComputeURL = e.URL+keysPath, e.URL
	key, err := x509.MarshalPKCS8PrivateKey(c.account)
	if err != nil {
		e.Close()
		return nil, err
	}
	subject := filepath.Join(dir, "google-subject-token")
	files := map[string]any{
		e.Credentials: map[string]string{
			"type": "service_account", "project_id": "emulated", "private_key_id": "emulated",
			"client_id":    "100000000000000000001",
			"client_email": accountEmail, "token_uri": e.URL + tokenPath, "universe_domain": "googleapis.com",
			"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})),
		},
		e.Federation: map[string]any{
			"type": "external_account", "audience": "//iam.googleapis.com/projects/123456789012/locations/global/workloadIdentityPools/emulated/providers/emulated",
			"subject_token_type": "urn:ietf:params:oauth:token-type:jwt", "token_url": e.URL + exchangePath,
			"universe_domain":                   "googleapis.com",
			"service_account_impersonation_url": e.URL + impersonate + accountEmail + ":generateAccessToken",
			"credential_source":                 map[string]any{"file": subject, "format": map[string]string{"type": "text"}},
		},
	}
	err = errors.Join(os.WriteFile(e.CAFile, e.CA, 0o644), os.WriteFile(subject, []byte(subjectToken), 0o600))
	for path, content := range files {
		raw, marshalErr := json.MarshalIndent(content, "", "  ")
		err = errors.Join(err, marshalErr, os.WriteFile(path, raw, 0o600))
	}
	if err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}
