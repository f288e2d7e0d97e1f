// SPDX-License-Identifier: Apache-2.0

package azure

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Metadata returns the service of a machine at 169.254.169.254.
func (c *Cloud) Metadata(i *Instance) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/metadata/attested/document", func(w http.ResponseWriter, r *http.Request) { c.attested(w, r, i) })
	mux.HandleFunc("/metadata/instance", func(w http.ResponseWriter, r *http.Request) { c.instance(w, r, i) })
	mux.HandleFunc("/metadata/instance/", func(w http.ResponseWriter, r *http.Request) { c.instance(w, r, i) })
	mux.HandleFunc("/metadata/identity/oauth2/token", func(w http.ResponseWriter, r *http.Request) { c.identity(w, r, i) })
	mux.HandleFunc("/metadata/versions", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, map[string]any{"apiVersions": versions})
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { refuse(w, http.StatusNotFound, "Not found") })
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f := c.fault(i)
		if f.Off {
			<-r.Context().Done()
			panic(http.ErrAbortHandler) // close the connection without a response
		}
		select {
		case <-time.After(f.Slow):
		case <-r.Context().Done():
			return
		}
		switch {
		case f.Throttled > 0:
			w.Header().Set("Retry-After", "1")
			refuse(w, http.StatusTooManyRequests, "Too many requests")
		case f.Gone > 0:
			refuse(w, http.StatusGone, "The service is being updated; retry after some time, at most 70 seconds")
		case f.Broken > 0:
			refuse(w, http.StatusInternalServerError, "Unexpected failure. Please retry")
		case f.NotFound:
			refuse(w, http.StatusNotFound, "Not found")
		case len(r.Header.Values("X-Forwarded-For")) > 0:
			refuse(w, http.StatusBadRequest, "Bad request. X-Forwarded-For header is not allowed")
		case !strings.EqualFold(r.Header.Get("Metadata"), "true") && r.URL.Path != "/metadata/versions":
			refuse(w, http.StatusBadRequest, "Bad request. Required metadata header not specified")
		case r.Method != http.MethodGet:
			refuse(w, http.StatusMethodNotAllowed, "Method not allowed")
		default:
			mux.ServeHTTP(w, r)
		}
	})
}

// fault returns the faults for this request, and uses up counted ones.
func (c *Cloud) fault(i *Instance) MetadataFaults {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := i.Metadata
	switch {
	case f.Throttled > 0:
		i.Metadata.Throttled--
	case f.Gone > 0:
		i.Metadata.Gone--
	case f.Broken > 0:
		i.Metadata.Broken--
	}
	return f
}

var versions = []string{"2017-12-01", "2018-02-01", "2018-10-01", "2020-09-01", "2021-01-01", "2021-02-01",
	"2021-12-13", "2023-07-01", "2025-04-07"}

// version reports whether a request names a valid version that is not older than since.
func version(w http.ResponseWriter, r *http.Request, since string) bool {
	v := r.URL.Query().Get("api-version")
	for _, known := range versions {
		if known == v && v >= since {
			return true
		}
	}
	what := "Bad request. api-version is invalid or was not specified in the request."
	reply(w, http.StatusBadRequest, map[string]any{"error": what, "newest-versions": versions[len(versions)-3:]})
	return false
}

func (c *Cloud) attested(w http.ResponseWriter, r *http.Request, i *Instance) {
	if !version(w, r, "2018-10-01") {
		return
	}
	nonce := r.URL.Query().Get("nonce")
	if len(nonce) > 32 {
		refuse(w, http.StatusBadRequest, "Bad request. nonce is longer than 32 characters")
		return
	}
	der, err := c.Document(i, nonce)
	if err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	if i.Metadata.Document != nil {
		der = i.Metadata.Document(der)
	}
	signature := base64.StdEncoding.EncodeToString(der)
	if i.Metadata.WrongBase64 {
		signature = hex.EncodeToString(der)
	}
	reply(w, http.StatusOK, map[string]string{"encoding": "pkcs7", "signature": signature})
}

func (c *Cloud) instance(w http.ResponseWriter, r *http.Request, i *Instance) {
	since := "2017-12-01"
	if strings.HasSuffix(r.URL.Path, "/userData") {
		since = "2021-01-01"
	}
	if !version(w, r, since) {
		return
	}
	data := base64.StdEncoding.EncodeToString(i.UserData)
	if i.Metadata.WrongBase64 {
		data = "%" + hex.EncodeToString(i.UserData)
	}
	var node any = map[string]any{
		"compute": map[string]any{
			"azEnvironment": "AzurePublicCloud", "location": i.Location, "name": i.Name, "osType": "Linux",
			"provider":          "Microsoft.Compute",
			"resourceGroupName": i.ResourceGroup, "resourceId": i.ResourceID(), "subscriptionId": i.Subscription, "vmId": i.VMID,
			"vmSize": "Standard_D4s_v5", "zone": "", "tags": "", "userData": data, "customData": "",
			"securityProfile": map[string]any{"secureBootEnabled": "true", "virtualTpmEnabled": "true"},
		},
		"network": map[string]any{"interface": []any{}},
	}
	for _, step := range strings.Split(strings.Trim(strings.TrimPrefix(r.URL.Path, "/metadata/instance"), "/"), "/") {
		if step == "" {
			continue
		}
		m, _ := node.(map[string]any)
		if node = m[step]; node == nil {
			refuse(w, http.StatusNotFound, "Not found")
			return
		}
	}
	if text, ok := node.(string); ok {
		if r.URL.Query().Get("format") != "text" {
			refuse(w, http.StatusBadRequest, "Bad request. A leaf needs format=text")
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, text) // the client may have disconnected
		return
	}
	reply(w, http.StatusOK, node)
}

// identity returns a token, and the same one until it expires.
func (c *Cloud) identity(w http.ResponseWriter, r *http.Request, i *Instance) {
	if !version(w, r, "2018-02-01") {
		return
	}
	fail := func(code, what string) {
		reply(w, http.StatusBadRequest, map[string]string{"error": code, "error_description": what})
	}
	q := r.URL.Query()
	resource := q.Get("resource")
	if resource == "" {
		fail("invalid_request", "Required query variable 'resource' is missing")
		return
	}
	named := q.Get("msi_res_id")
	if i.Identity == "" || named != "" && !strings.EqualFold(named, i.Identity) {
		fail("invalid_request", "Identity not found")
		return
	}
	key := i.ResourceID() + "\x00" + i.Identity + "\x00" + resource
	c.mu.Lock()
	token, ok := c.tokens[key]
	c.mu.Unlock()
	if !ok {
		var err error
		if token, err = c.IdentityToken(i, resource, nil); err != nil {
			refuse(w, http.StatusInternalServerError, err.Error())
			return
		}
		c.mu.Lock()
		c.tokens[key] = token
		c.mu.Unlock()
	}
	now := c.Now()
	reply(w, http.StatusOK, map[string]string{
		"access_token": token, "client_id": "5f2c0000-0000-4000-8000-000000000001", "expires_in": "86399",
		"ext_expires_in": "86399",
		"expires_on":     strconv.FormatInt(now.Add(24*time.Hour).Unix(), 10),
		"not_before":     strconv.FormatInt(now.Unix(), 10),
		"resource":       resource, "token_type": "Bearer",
	})
}

func refuse(w http.ResponseWriter, status int, what string) {
	reply(w, status, map[string]string{"error": what})
}

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client may have disconnected
}
