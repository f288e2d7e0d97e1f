// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// subjectToken represents the projected token of the verifier's Kubernetes service account.
const subjectToken = "emulated-projected-service-account-token"

// Endpoints are the address of the API and what the verifier needs to use it.
type Endpoints struct {
	// URL is https://127.0.0.1:port. KeysURL and ComputeURL are for the verifier's configuration
	// (gcp.keys, gcp.compute), with CAFile.
	URL, KeysURL, ComputeURL, CAFile string
	// Credentials is for GOOGLE_APPLICATION_CREDENTIALS: a service account's key.
	// Federation is the alternative that OpenShift uses if there is no such key.
	Credentials, Federation string

	server *http.Server
}

// Close stops listening.
func (e *Endpoints) Close() error { return e.server.Close() }

// Serve listens on 127.0.0.1 with TLS, and writes the CA and the credentials into a folder.
func (c *Cloud) Serve(dir string) (*Endpoints, error) {
	certificate, authority, err := serverCertificate()
	if err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	e := &Endpoints{URL: "https://" + l.Addr().String(), CAFile: filepath.Join(dir, "google-ca.pem"),
		Credentials: filepath.Join(dir, "google-credentials.json"), Federation: filepath.Join(dir, "google-federation.json")}
	e.KeysURL, e.ComputeURL = e.URL+keysPath, e.URL
	e.server = &http.Server{
		Handler:           c.API(),
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12},
		ReadHeaderTimeout: 10 * time.Second,
		ErrorLog:          log.New(io.Discard, "", 0),
	}
	key, err := x509.MarshalPKCS8PrivateKey(c.account)
	if err != nil {
		return nil, errors.Join(err, l.Close())
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
	err = errors.Join(os.WriteFile(e.CAFile, authority, 0o644), os.WriteFile(subject, []byte(subjectToken), 0o600))
	for path, content := range files {
		raw, marshalErr := json.MarshalIndent(content, "", "  ")
		err = errors.Join(err, marshalErr, os.WriteFile(path, raw, 0o600))
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	go func() { _ = e.server.ServeTLS(l, "", "") }() // Close ends it
	return e, nil
}

// serverCertificate creates a CA and a certificate for this machine.
func serverCertificate() (tls.Certificate, []byte, error) {
	issue := func(t, parent *x509.Certificate, signer *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey, error) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, nil, err
		}
		if signer == nil {
			parent, signer = t, key
		}
		t.NotBefore, t.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(30*24*time.Hour)
		der, err := x509.CreateCertificate(rand.Reader, t, parent, &key.PublicKey, signer)
		if err != nil {
			return nil, nil, err
		}
		certificate, err := x509.ParseCertificate(der)
		return certificate, key, err
	}
	ca, caKey, err := issue(&x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "emulated Google"}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, nil, nil)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	leaf, key, err := issue(&x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "emulated Google APIs"},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, DNSNames: []string{"localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}, ca, caKey)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	return tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key},
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw}), nil
}
