// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
)

const (
	// The real places are https://www.googleapis.com, https://oauth2.googleapis.com,
	// https://sts.googleapis.com, https://iamcredentials.googleapis.com and
	// https://compute.googleapis.com.
	keysPath     = "/oauth2/v3/certs"
	tokenPath    = "/token"
	exchangePath = "/v1/token"
	impersonate  = "/v1/projects/-/serviceAccounts/"
	computePath  = "/compute/v1/projects/{project}/zones/{zone}/instances/{instance}/getShieldedInstanceIdentity"

	accessLife   = time.Hour
	accountEmail = "mcs-attest@emulated.iam.gserviceaccount.com"
)

// API returns what the verifier calls.
func (c *Cloud) API() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+keysPath, c.serveKeys)
	mux.HandleFunc("POST "+tokenPath, c.serveToken)
	mux.HandleFunc("POST "+exchangePath, c.serveToken)
	mux.HandleFunc("POST "+impersonate+"{account}", c.serveImpersonation)
	mux.HandleFunc("GET "+computePath, c.serveIdentity)
	return mux
}

func (c *Cloud) serveKeys(w http.ResponseWriter, r *http.Request) {
	if c.met(w, r, Keys, apiError) {
		return
	}
	seconds := int(c.o.MaxAge / time.Second)
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	w.Header().Set("Cache-Control", fmt.Sprintf("public, max-age=%d, must-revalidate, no-transform", seconds))
	w.Header().Set("Age", "0")
	_, _ = w.Write(c.Keys())
}

// serveToken gives the verifier an access token: for an assertion that its service account's key
// signed (RFC 7523), or for a token of its Kubernetes service account (RFC 8693, workload identity
// federation).
func (c *Cloud) serveToken(w http.ResponseWriter, r *http.Request) {
	if c.met(w, r, Token, tokenError) {
		return
	}
	if err := r.ParseForm(); err != nil {
		tokenError(w, http.StatusBadRequest, "invalid_request")
		return
	}
	answer := map[string]any{"token_type": "Bearer", "expires_in": int(accessLife / time.Second)}
	kind := "ya29.emulated."
	switch r.Form.Get("grant_type") {
	case "urn:ietf:params:oauth:grant-type:jwt-bearer":
		jws, err := jose.ParseSignedCompact(r.Form.Get("assertion"), []jose.SignatureAlgorithm{jose.RS256})
		if err != nil {
			tokenError(w, http.StatusBadRequest, "invalid_grant")
			return
		}
		payload, err := jws.Verify(&c.account.PublicKey)
		if err != nil || !strings.Contains(string(payload), `"scope"`) {
			tokenError(w, http.StatusBadRequest, "invalid_grant")
			return
		}
	case "urn:ietf:params:oauth:grant-type:token-exchange":
		if r.Form.Get("subject_token") != subjectToken || r.Form.Get("scope") == "" {
			tokenError(w, http.StatusBadRequest, "invalid_grant")
			return
		}
		kind = federated
		answer["issued_token_type"] = "urn:ietf:params:oauth:token-type:access_token"
	default:
		tokenError(w, http.StatusBadRequest, "unsupported_grant_type")
		return
	}
	answer["access_token"] = c.mint(kind)
	writeJSON(w, http.StatusOK, answer)
}

// federated is the prefix of a federated identity's token. That identity may only impersonate the
// service account.
const federated = "ya29.d.federated."

func (c *Cloud) mint(kind string) string {
	raw := make([]byte, 24)
	_, _ = rand.Read(raw) // crypto/rand does not fail
	access := kind + hex.EncodeToString(raw)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.access[access] = c.o.Now().Add(accessLife)
	return access
}

// bearer returns the access token of a request, and whether it is valid.
func (c *Cloud) bearer(r *http.Request) (string, bool) {
	access, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	c.mu.Lock()
	defer c.mu.Unlock()
	return access, ok && c.o.Now().Before(c.access[access])
}

// serveImpersonation is iamcredentials' generateAccessToken.
func (c *Cloud) serveImpersonation(w http.ResponseWriter, r *http.Request) {
	if c.met(w, r, Token, apiError) {
		return
	}
	access, ok := c.bearer(r)
	switch {
	case !ok:
		apiError(w, http.StatusUnauthorized, "Request had invalid authentication credentials.")
	case !strings.HasPrefix(access, federated) || r.PathValue("account") != accountEmail+":generateAccessToken":
		apiError(w, http.StatusForbidden,
			"Permission 'iam.serviceAccounts.getAccessToken' denied on resource (or it may not exist).")
	default:
		writeJSON(w, http.StatusOK, map[string]any{
			"accessToken": c.mint("ya29.emulated."), "expireTime": c.o.Now().Add(accessLife).UTC().Format(time.RFC3339),
		})
	}
}

func (c *Cloud) serveIdentity(w http.ResponseWriter, r *http.Request) {
	if c.met(w, r, Compute, apiError) {
		return
	}
	access, ok := c.bearer(r)
	if !ok {
		apiError(w, http.StatusUnauthorized, "Request had invalid authentication credentials.")
		return
	}
	if strings.HasPrefix(access, federated) {
		apiError(w, http.StatusForbidden, "Required 'compute.instances.getShieldedInstanceIdentity' permission")
		return
	}
	i, ok := c.find(r.PathValue("project"), r.PathValue("zone"), r.PathValue("instance"))
	if !ok {
		apiError(w, http.StatusNotFound, "The resource 'projects/"+r.PathValue("project")+"/zones/"+r.PathValue("zone")+
			"/instances/"+r.PathValue("instance")+"' was not found")
		return
	}
	answer := map[string]any{"kind": "compute#shieldedInstanceIdentity"}
	for _, ek := range i.EKs {
		name := map[bool]string{true: "encryptionKey", false: "eccP256EncryptionKey"}
		_, isRSA := ek.(*rsa.PublicKey)
		if _, isECC := ek.(*ecdsa.PublicKey); !isRSA && !isECC {
			apiError(w, http.StatusInternalServerError, fmt.Sprintf("an EK of type %T", ek))
			return
		}
		block, err := publicPEM(ek)
		if err != nil {
			apiError(w, http.StatusInternalServerError, err.Error())
			return
		}
		answer[name[isRSA]] = map[string]any{"ekPub": block}
	}
	writeJSON(w, http.StatusOK, answer)
}

func publicPEM(k crypto.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(k)
	if err != nil {
		return "", err
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})), nil
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client may have disconnected
}

// apiError returns an error in the form of Google's APIs.
func apiError(w http.ResponseWriter, status int, what string) {
	reasons := map[int][2]string{
		http.StatusForbidden: {"forbidden", "PERMISSION_DENIED"}, http.StatusNotFound: {"notFound", "NOT_FOUND"},
		http.StatusUnauthorized:       {"authError", "UNAUTHENTICATED"},
		http.StatusTooManyRequests:    {"rateLimitExceeded", "RESOURCE_EXHAUSTED"},
		http.StatusServiceUnavailable: {"backendError", "UNAVAILABLE"},
	}
	reason := reasons[status]
	writeJSON(w, status, map[string]any{"error": map[string]any{
		"code": status, "message": what, "status": reason[1],
		"errors": []any{map[string]any{"message": what, "domain": "global", "reason": reason[0]}},
	}})
}

// tokenError returns an error of RFC 6749, 5.2.
func tokenError(w http.ResponseWriter, status int, what string) {
	writeJSON(w, status, map[string]any{"error": what, "error_description": what})
}
