// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mcs-attest/mcs-attest/testvm/cluster"
)

// pageOf reads the web page.
func pageOf(t *testing.T, transport *http.Transport, url, host, user, password string) (int, string) {
	t.Helper()
	transport.DisableKeepAlives = true
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if req.Host = host; password != "" {
		req.SetBasicAuth(user, password)
	}
	res, err := (&http.Client{Transport: transport, Timeout: time.Minute}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	asks := res.Header.Get("WWW-Authenticate")
	if (res.StatusCode == http.StatusUnauthorized) != strings.HasPrefix(asks, "Basic ") {
		t.Errorf("%d asks for %q", res.StatusCode, asks)
	}
	return res.StatusCode, string(body)
}

// Without a cluster, only a caller that can open the socket of the page reads the page.
func TestWebPage_OfAFolderIsOnItsSocketOnly(t *testing.T) {
	s := serveFolder(t, "webPage: true\n")
	eventually(t, func() bool {
		info, err := os.Stat(filepath.Join(s.dir, "state", "page.sock"))
		return err == nil && info.Mode().Perm() == 0o600
	}, func() string { return "there is no socket that only its owner may open" })
	socket := func(host, path string) (int, string) {
		return pageOf(t, &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(s.dir, "state", "page.sock"))
		}}, "http://verifier"+path, host, "", "")
	}
	for _, host := range []string{"localhost:9623", "127.0.0.1:9623", "[::1]:9623", "localhost"} {
		if code, body := socket(host, "/page"); code != http.StatusOK || !strings.Contains(body, "serving certificate") {
			t.Errorf("%s: %d %s", host, code, body)
		}
	}
	for _, host := range []string{"attacker.example", "localhost.attacker.example:9623", "192.0.2.1", "verifier"} {
		code, body := socket(host, "/page")
		if code != http.StatusMisdirectedRequest || strings.Contains(body, "certificate") {
			t.Errorf("%s: %d", host, code)
		}
	}
	for _, path := range []string{"/v1/state", "/v1/backup", "/v1/records/x", "/"} {
		if code, _ := socket("localhost", path); code != http.StatusNotFound {
			t.Errorf("a tunnel to the page leads to %s: %d", path, code)
		}
	}
	_, body := socket("localhost", "/page")
	compared := 0
	for _, dir := range []string{"keys", "tls"} {
		entries, err := os.ReadDir(filepath.Join(s.dir, dir))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			raw, err := os.ReadFile(filepath.Join(s.dir, dir, e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			for _, secret := range regexp.MustCompile(`[A-Za-z0-9+/_=-]{40,}`).FindAllString(string(raw), -1) {
				if compared++; strings.Contains(body, secret) && !strings.Contains(body, "token key "+secret) {
					t.Errorf("the page has a secret of %s/%s", dir, e.Name())
				}
			}
		}
	}
	if compared < 5 {
		t.Errorf("%d secrets compared", compared)
	}
	metrics := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.roots, ServerName: "mcs.test"}}
	if code, _ := pageOf(t, metrics, "https://"+s.figure+"/page", "", "", ""); code != http.StatusNotFound {
		t.Errorf("the listener without authentication answers %d", code)
	}
}

func TestWebPage_IsOffUnlessAskedFor(t *testing.T) {
	s := serveFolder(t, "")
	if _, err := os.Stat(filepath.Join(s.dir, "state", "page.sock")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("there is a socket: %v", err)
	}
}

// In a cluster the API server authorizes each reader, with the permissions that deploy/ gives. The pages of a front and
// of a controller follow a machine from its first attestation to a Node that is Ready.
func TestWebPage_InACluster(t *testing.T) {
	rs := newReplicas(t, cluster.StartShared(t), 1, "webPage: true\n")
	r := rs.all[0]
	controller := func() string {
		for line := range strings.Lines(r.log.everything()) {
			m := regexp.MustCompile(`"metrics":"([^"]+)"`).FindStringSubmatch(line)
			if m != nil && !strings.Contains(line, `"listen"`) { // that of the front has both
				return m[1]
			}
		}
		return ""
	}
	eventually(t, func() bool { return controller() != "" },
		func() string { return "no controller: " + r.log.everything() })
	read := func(address, path, password string) (int, string) {
		return pageOf(t, &http.Transport{TLSClientConfig: &tls.Config{RootCAs: rs.roots, ServerName: "mcs.test"}},
			"https://"+address+path, "", "any", password)
	}
	account := func(name string) string { return rs.cluster.ServiceAccount(t, "default", name).BearerToken }
	reader, stranger := account("page-reader"), account("stranger")
	rs.cluster.KubectlApply(t, object("rbac.authorization.k8s.io/v1", "ClusterRole", "", "page-reader", map[string]any{
		"rules": []any{map[string]any{"nonResourceURLs": []any{"/page"}, "verbs": []any{"get"}}}})+
		object("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "", "page-reader", map[string]any{
			"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "page-reader"},
			"subjects": []any{map[string]any{"kind": "ServiceAccount", "namespace": "default", "name": "page-reader"}}}))
	pages := map[string]string{"front": r.metrics, "controller": controller()}
	eventually(t, func() bool { code, _ := read(r.metrics, "/page", reader); return code == http.StatusOK },
		func() string { return "the role is not in force" })
	for name, address := range pages {
		for _, c := range []struct {
			what, path, token string
			want              int
		}{
			{"no token", "/page", "", http.StatusUnauthorized},
			{"no token", "/page/events", "", http.StatusUnauthorized},
			{"no token", "/page/page.js", "", http.StatusUnauthorized},
			{"a forged token", "/page", reader[:len(reader)-8] + "AAAAAAAA", http.StatusUnauthorized},
			{"an account without the permission", "/page", stranger, http.StatusForbidden},
			{"an account without the permission", "/page/events", stranger, http.StatusForbidden},
			{"a reader", "/page", reader, http.StatusOK},
			{"a reader", "/page/page.css", reader, http.StatusOK},
		} {
			code, body := read(address, c.path, c.token)
			if code != c.want {
				t.Errorf("%s, %s, %s: %d", name, c.what, c.path, code)
			}
			if code != http.StatusOK && strings.Contains(body, "<section") {
				t.Errorf("%s, %s: the denial has the page", name, c.what)
			}
		}
	}

	shows := func(texts ...string) {
		t.Helper()
		for name, address := range pages {
			var body string
			eventually(t, func() bool {
				_, body = read(address, "/page", reader)
				for _, text := range texts {
					if !strings.Contains(body, text) {
						return false
					}
				}
				return true
			}, func() string {
				return "the page of the " + name + " lacks one of " + strings.Join(texts, ", ") + ": " + body
			})
			if strings.Contains(body, "forbidden") {
				t.Errorf("the account of the %s lacks a permission: %s", name, body)
			}
		}
	}
	keys := soft(t)
	rs.machine("scale-up-1", keys.spki)
	shows("/scale-up-1<", ">Not seen</span>", "Created")
	var token string
	eventually(t, func() bool {
		var err error
		token, _, err = rs.node(keys).attest(t.Context())
		return err == nil
	}, func() string { return "it does not attest" })
	shows(">Attested</span>", "Challenged ")
	if code, _, err := rs.fetch(t.Context(), r.addr, "/config/worker", token); err != nil || code != http.StatusOK {
		t.Fatal(code, err)
	}
	shows(">Fetched</span>")
	rs.cluster.KubectlApply(t, object("v1", "Node", "", "node-1", nil))
	rs.patch(machinesResource, "scale-up-1", `{"status":{"phase":"Running","nodeRef":{"kind":"Node","name":"node-1"}}}`, "status")
	shows(">Joined</span>")
	nodes := schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	if _, err := rs.client.Resource(nodes).Patch(t.Context(), "node-1", types.MergePatchType, []byte(
		`{"status":{"conditions":[{"type":"Ready","status":"True","lastTransitionTime":"`+
			time.Now().UTC().Add(time.Second).Format(time.RFC3339)+`"}]}}`), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	shows(">Ready</span>", "Available", "token key ")
	_, body := read(r.metrics, "/page", reader)
	for what, secret := range map[string]string{"the token": token, "the config": "full-config-secret"} {
		if strings.Contains(body, secret) {
			t.Errorf("the page has %s", what)
		}
	}
}
