// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	ignition "github.com/coreos/ignition/v2/config/v3_1"
	"github.com/coreos/ignition/v2/config/v3_1/types"
	"github.com/vincent-petithory/dataurl"
)

// pointerOfAssisted is the pointer config that assisted-service writes to a host's disk
// from ignitionEndpoint{url, caCertificateReference} and ignitionEndpointTokenReference.
func pointerOfAssisted(t *testing.T, url string, ca []byte, token string) types.Config {
	t.Helper()
	headers := ""
	if token != "" {
		headers = fmt.Sprintf(`, "httpHeaders": [{"name": "Authorization", "value": "Bearer %s"}]`, token)
	}
	config, report, err := ignition.Parse(fmt.Appendf(nil, `{"ignition": {"version": "3.1.0",
		"config": {"merge": [{"source": %q%s}]},
		"security": {"tls": {"certificateAuthorities": [{"source": %q}]}}}}`, url, headers, dataurl.EncodeBytes(ca)))
	if err != nil {
		t.Fatalf("%v\n%s", err, report)
	}
	return config
}

// boot asks as Ignition does with a pointer config: with its headers, trusting its CA.
func boot(t *testing.T, v *verifier, pointer types.Config) (status int, config string, err error) {
	t.Helper()
	ca, err := dataurl.DecodeString(*pointer.Ignition.Security.TLS.CertificateAuthorities[0].Source)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.Data)
	tr := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", v.addr)
		},
		TLSClientConfig: &tls.Config{RootCAs: roots},
	}
	defer tr.CloseIdleConnections()
	merge := pointer.Ignition.Config.Merge[0]
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, *merge.Source, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "application/vnd.coreos.ignition+json;version=3.4.0, */*;q=0.1")
	r.Header.Set("User-Agent", "Ignition/2.20.0")
	for _, h := range merge.HTTPHeaders {
		r.Header.Set(h.Name, *h.Value)
	}
	res, err := (&http.Client{Transport: tr}).Do(r)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(body), nil
}

// A27: hosts that the assisted installer adds on day 2 reach the config with the
// endpoint, the CA and the token that assisted-service has fields for, over a rotation
// of the token, too.
func TestAssistedDayTwoHostsFetchWithTheEndpointsTokenReference(t *testing.T) {
	v := newShared(t, sharedAlone, sharedA)
	ca, err := os.ReadFile(filepath.Join(v.dir, "tls", "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	const url = testOrigin + "/config" + "/worker" // assisted-service adds the pool
	want := func(what, token string, status int) {
		t.Helper()
		got, config, err := boot(t, v, pointerOfAssisted(t, url, ca, token))
		if err != nil || got != status {
			t.Errorf("%s: %d %v, want %d", what, got, err, status)
		}
		if (status == http.StatusOK) != (config == fullConfig) {
			t.Errorf("%s: received %q", what, config)
		}
	}
	// No token is used up: each host asks in its check from the discovery image, and again
	// at its first boot.
	for range 20 {
		want("a host", sharedA, http.StatusOK)
	}
	want("an endpoint without a token reference", "", http.StatusUnauthorized)
	want("the token of another cluster", sharedC, http.StatusUnauthorized)
	if got, _, err := boot(t, v, pointerOfAssisted(t, strings.TrimSuffix(url, "/worker")+"/master", ca,
		"x")); err != nil || got != http.StatusUnauthorized {
		t.Errorf("an unknown token, for another pool: %d %v", got, err)
	}
	other := newVerifier(t)
	foreign, err := os.ReadFile(filepath.Join(other.dir, "tls", "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := boot(t, v, pointerOfAssisted(t, url, foreign, sharedA)); err == nil {
		t.Error("a host accepts the config from a server that its CA did not sign")
	}

	// The token is rotated: hosts with the one before it work in its grace, and the
	// hub's Secret follows.
	v.share("token: " + sharedB + "\n")
	want("written before the rotation", sharedA, http.StatusOK)
	want("written after it", sharedB, http.StatusOK)
	v.advance(61 * time.Minute)
	want("written before, after the grace", sharedA, http.StatusUnauthorized)
	want("after the grace", sharedB, http.StatusOK)
}

// F12: the assisted installer searches the log for each address of a host, also behind a load balancer.
func TestAssistedInstaller_FindsTheHostsAddressInTheLog(t *testing.T) {
	v := newShared(t, sharedAlone, sharedA)
	v.stop()
	v.write("mcs-attest.yaml", "origins: [\""+testOrigin+"\"]\ntrustedProxies: [10.0.0.0/8, \"2001:db8:0:1::/126\"]\n")
	v.start()
	if v.server.AccessLog != os.Stdout {
		t.Error("the log is not on standard output")
	}
	var log bytes.Buffer
	v.server.AccessLog = &log
	h, err := v.server.Handler(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const host, host6 = "192.0.2.7", "2001:db8:0:1:2:3:4:5"
	for _, c := range []struct {
		name, peer, token string
		forwarded         []string
		address           string // "": no line
	}{
		{"a host", host + ":40312", sharedA, nil, host + ":40312"},
		{"a host with IPv6", "[" + host6 + "]:40312", sharedA, nil, "[" + host6 + "]:40312"},
		{"a host that names another", host + ":40312", sharedA, []string{"192.0.2.8"}, host + ":40312"},
		{"a load balancer", "10.0.0.1:5000", sharedA, []string{host}, host + ":0"},
		{"two load balancers", "10.0.0.1:5000", sharedA, []string{"192.0.2.8, " + host, "10.0.0.2"}, host + ":0"},
		{"a load balancer for IPv6", "10.0.0.1:5000", sharedA, []string{host6}, "[" + host6 + "]:0"},
		{"a load balancer in the host's network", "[2001:db8:0:1::2]:5000", sharedA, []string{host6}, "[" + host6 + "]:0"},
		{"a load balancer that names none", "10.0.0.1:5000", sharedA, nil, "10.0.0.1:5000"},
		{"a host with a wrong token", host + ":40312", sharedB, nil, ""},
	} {
		log.Reset()
		r := mustRequest(t, testOrigin+"/config/worker")
		r.RemoteAddr, r.TLS = c.peer, &tls.ConnectionState{Version: tls.VersionTLS13}
		r.Header = http.Header{"Authorization": {"Bearer " + c.token}, "Accept": {"*/*"}, "User-Agent": {"Ignition/2.20.0"},
			"X-Forwarded-For": c.forwarded}
		h.ServeHTTP(newResponse(), r)
		_, got, _ := strings.Cut(log.String(), " Pool ") // after the time
		want := fmt.Sprintf("\"worker\" requested by address:%q User-Agent:\"Ignition/2.20.0\" Accept-Header: \"*/*\"\n",
			c.address)
		if c.address == "" {
			want = ""
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", c.name, got, want)
		}
	}
}
