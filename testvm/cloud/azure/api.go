// SPDX-License-Identifier: Apache-2.0

package azure

import (
	"crypto/subtle"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/mcs-attest/mcs-attest/testvm/cloud/tlsserver"
)

// API returns what a verifier calls: the login endpoint (OpenID metadata, keys, tokens for client
// credentials) and Azure Resource Manager.
func (c *Cloud) API() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /common/discovery/instance", c.discovery)
	mux.HandleFunc("GET /{tenant}/.well-known/openid-configuration", c.openid)
	mux.HandleFunc("GET /{tenant}/v2.0/.well-known/openid-configuration", c.openid)
	mux.HandleFunc("GET /{tenant}/discovery/v2.0/keys", c.keys)
	mux.HandleFunc("GET /{tenant}/discovery/keys", c.keys)
	mux.HandleFunc("POST /{tenant}/oauth2/v2.0/token", c.token)
	mux.HandleFunc(
		"GET /subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.Compute/virtualMachines/{name}", c.vm)
	return mux
}

func (c *Cloud) discovery(w http.ResponseWriter, r *http.Request) {
	reply(w, http.StatusOK, map[string]any{
		"tenant_discovery_endpoint": "https://" + r.Host + "/" + c.Tenant + "/v2.0/.well-known/openid-configuration",
		"api-version":               "1.1",
		"metadata": []map[string]any{{"preferred_network": r.Host, "preferred_cache": r.Host,
			"aliases": []string{r.Host}}},
	})
}

func (c *Cloud) openid(w http.ResponseWriter, r *http.Request) {
	if f := c.count("openid"); f.Login != 0 {
		refuse(w, f.Login, "login is not well")
		return
	}
	base := "https://" + r.Host + "/" + r.PathValue("tenant")
	reply(w, http.StatusOK, map[string]any{
		"issuer": base + "/v2.0", "authorization_endpoint": base + "/oauth2/v2.0/authorize",
		"token_endpoint": base + "/oauth2/v2.0/token", "jwks_uri": base + "/discovery/v2.0/keys",
	})
}

func (c *Cloud) keys(w http.ResponseWriter, r *http.Request) {
	if f := c.count("keys"); f.Login != 0 {
		refuse(w, f.Login, "login is not well")
		return
	}
	if r.PathValue("tenant") != c.Tenant {
		reply(w, http.StatusBadRequest,
			map[string]any{"error": "invalid_tenant", "error_description": "AADSTS90002: Tenant not found."})
		return
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("Cache-Control", "max-age=86400, private")
	_, _ = w.Write(c.KeysJSON()) // the client may have disconnected
}

// bearer is ARM's token for the verifier's service principal.
const bearer = "emulated-arm-token"

func (c *Cloud) token(w http.ResponseWriter, r *http.Request) {
	if f := c.count("token"); f.Login != 0 {
		refuse(w, f.Login, "login is not well")
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, 64<<10)
	secret := subtle.ConstantTimeCompare([]byte(r.PostFormValue("client_secret")), []byte(c.ClientSecret)) == 1
	if r.PostFormValue("grant_type") != "client_credentials" || r.PostFormValue("client_id") != c.ClientID || !secret ||
		r.PathValue("tenant") != c.Tenant {
		reply(w, http.StatusUnauthorized, map[string]any{"error": "invalid_client",
			"error_description": "AADSTS7000215: Invalid client secret provided."})
		return
	}
	reply(w, http.StatusOK, map[string]any{"token_type": "Bearer", "expires_in": 3599, "ext_expires_in": 3599,
		"access_token": bearer})
}

var apiVersion = regexp.MustCompile(`^20[0-9]{2}-[0-9]{2}-[0-9]{2}$`)

func (c *Cloud) vm(w http.ResponseWriter, r *http.Request) {
	f := c.count("vm")
	fail := func(status int, code, what string) {
		w.Header().Set("x-ms-error-code", code)
		reply(w, status, map[string]any{"error": map[string]string{"code": code, "message": what}})
	}
	select {
	case <-time.After(f.Slow):
	case <-r.Context().Done():
		return
	}
	switch {
	case f.Status == http.StatusForbidden:
		fail(f.Status, "AuthorizationFailed",
			"The client does not have authorization to perform action 'Microsoft.Compute/virtualMachines/read' over scope '"+
				r.URL.Path+"'.")
		return
	case f.Status != 0:
		w.Header().Set("Retry-After", "1")
		fail(f.Status, "ServerFault", "not well")
		return
	case f.Body != nil:
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		_, _ = w.Write(f.Body) // the client may have disconnected
		return
	case r.Header.Get("Authorization") != "Bearer "+bearer:
		w.Header().Set("WWW-Authenticate", `Bearer authorization_uri="https://`+r.Host+"/"+c.Tenant+
			`", error="invalid_token"`)
		fail(http.StatusUnauthorized, "AuthenticationFailed", "Authentication failed.")
		return
	case !apiVersion.MatchString(r.URL.Query().Get("api-version")):
		fail(http.StatusBadRequest, "MissingApiVersionParameter",
			"The api-version query parameter (?api-version=) is required for all requests.")
		return
	}
	c.mu.Lock()
	i, ok := c.instances[strings.ToLower(r.URL.Path)]
	c.mu.Unlock()
	if !ok {
		fail(http.StatusNotFound, "ResourceNotFound", "The Resource 'Microsoft.Compute/virtualMachines/"+r.PathValue("name")+
			"' under resource group '"+r.PathValue("group")+"' was not found.")
		return
	}
	reply(w, http.StatusOK, map[string]any{
		// ARM returns the resource group in capitals here.
		"id":   strings.Replace(i.ResourceID(), i.ResourceGroup, strings.ToUpper(i.ResourceGroup), 1),
		"name": i.Name, "type": "Microsoft.Compute/virtualMachines", "location": i.Location,
		"properties": map[string]any{
			"vmId": i.VMID, "provisioningState": "Succeeded", "timeCreated": i.Created.Format(time.RFC3339),
			"hardwareProfile": map[string]string{"vmSize": "Standard_D4s_v5"},
		},
	})
}

// Serve starts the API on a free port of the loopback interface.
func (c *Cloud) Serve() (*tlsserver.Server, error) { return tlsserver.Start(c.API()) }
