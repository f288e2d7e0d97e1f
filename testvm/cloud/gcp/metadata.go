// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"fmt"
	"html"
	"net/http"
	"strconv"
	"strings"
)

const v1 = "/computeMetadata/v1/"

// Metadata returns the metadata server of one instance, at http://169.254.169.254 and
// http://metadata.google.internal.
//
// It requires "Metadata-Flavor: Google" and returns that header. It rejects a request that came
// through a proxy (X-Forwarded-For). It answers 404 for everything that the instance does not have,
// including a service account, and 400 for an identity without an audience.
func (c *Cloud) Metadata(id uint64) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Server", "Metadata Server for VM")
		w.Header().Set("Metadata-Flavor", "Google")
		w.Header().Set("X-Xss-Protection", "0")
		w.Header().Set("X-Frame-Options", "SAMEORIGIN")
		route := Metadata
		if strings.HasSuffix(r.URL.Path, "/identity") {
			route = Identity
		}
		if c.met(w, r, route, pageError) {
			return
		}
		i, ok := c.Instance(id)
		switch {
		case !ok:
			pageError(w, http.StatusServiceUnavailable, "The instance is being deleted.")
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			pageError(w, http.StatusMethodNotAllowed, "The request method is inappropriate for this URL.")
		case r.URL.Path == "/":
			text(w, "computeMetadata/\n")
		case r.Header.Get("X-Forwarded-For") != "":
			pageError(w, http.StatusForbidden, "Request contains an X-Forwarded-For header.")
		case r.Header.Get("Metadata-Flavor") != "Google":
			pageError(w, http.StatusForbidden, "Missing Metadata-Flavor:Google header.")
		case !strings.HasPrefix(r.URL.Path, v1):
			notFound(w, r)
		default:
			c.value(w, r, i, strings.TrimPrefix(r.URL.Path, v1))
		}
	})
}

func (c *Cloud) value(w http.ResponseWriter, r *http.Request, i Instance, path string) {
	account := i.ServiceAccount
	switch path {
	case "instance/id":
		text(w, strconv.FormatUint(i.ID, 10))
	case "instance/name":
		text(w, i.Name)
	case "instance/hostname":
		text(w, fmt.Sprintf("%s.%s.c.%s.internal", i.Name, i.Zone, i.Project))
	case "instance/zone":
		text(w, fmt.Sprintf("projects/%d/zones/%s", i.ProjectNumber, i.Zone))
	case "instance/attributes/":
		if i.UserData != nil {
			text(w, "user-data\n")
			return
		}
		text(w, "")
	case "instance/attributes/user-data":
		if i.UserData == nil {
			notFound(w, r)
			return
		}
		text(w, string(i.UserData))
	case "project/project-id":
		text(w, i.Project)
	case "project/numeric-project-id":
		text(w, strconv.FormatInt(i.ProjectNumber, 10))
	case "universe/universe-domain", "universe/universe_domain":
		text(w, "googleapis.com")
	case "instance/service-accounts/":
		if account == "-" {
			text(w, "")
			return
		}
		text(w, account+"/\ndefault/\n")
	default:
		name, leaf, _ := strings.Cut(strings.TrimPrefix(path, "instance/service-accounts/"), "/")
		if !strings.HasPrefix(path, "instance/service-accounts/") || account == "-" || name != "default" && name != account {
			notFound(w, r)
			return
		}
		c.accountValue(w, r, i, leaf)
	}
}

func (c *Cloud) accountValue(w http.ResponseWriter, r *http.Request, i Instance, leaf string) {
	switch leaf {
	case "email":
		text(w, i.ServiceAccount)
	case "scopes":
		text(w, "https://www.googleapis.com/auth/cloud-platform\n")
	case "identity":
		audience := r.URL.Query().Get("audience")
		if audience == "" {
			pageError(w, http.StatusBadRequest, "non-empty audience parameter required")
			return
		}
		format := r.URL.Query().Get("format")
		if format != "" && format != "standard" && format != "full" {
			pageError(w, http.StatusBadRequest, "invalid format parameter")
			return
		}
		token, err := c.Sign(c.Claims(i, audience, format == "full"))
		if err != nil {
			pageError(w, http.StatusInternalServerError, err.Error())
			return
		}
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte(token))
	default:
		notFound(w, r)
	}
}

// text returns a leaf like the metadata server: without a final newline.
func text(w http.ResponseWriter, s string) {
	w.Header().Set("Content-Type", "application/text")
	w.Header().Set("Content-Length", strconv.Itoa(len(s)))
	_, _ = w.Write([]byte(s))
}

func notFound(w http.ResponseWriter, r *http.Request) {
	pageError(w, http.StatusNotFound, "The requested URL "+r.URL.Path+" was not found on this server.")
}

// pageError returns an error of the metadata server: an HTML page.
func pageError(w http.ResponseWriter, status int, what string) {
	w.Header().Set("Content-Type", "text/html; charset=UTF-8")
	w.WriteHeader(status)
	fmt.Fprintf(w, "<!DOCTYPE html>\n<html lang=en>\n<meta charset=utf-8>\n<title>Error %d "+
		"(%s)!!1</title>\n<p><b>%d.</b> <ins>That’s an error.</ins>\n<p>%s\n",
		status, http.StatusText(status), status, html.EscapeString(what))
}
