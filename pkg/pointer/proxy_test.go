// SPDX-License-Identifier: Apache-2.0

package pointer_test

import (
	"encoding/json"
	"net/url"
	"testing"

	"golang.org/x/net/http/httpproxy"

	"github.com/mcs-attest/mcs-attest/pkg/pointer"
)

// The result is compared with the package that Ignition uses.
func TestProxy(t *testing.T) {
	sources := []string{
		mcs, "http://api-int.example.com:22624/config/worker", "https://example.com/config/worker",
		"https://API-INT.example.com/config/worker",
		"https://127.0.0.1:22623/config/worker", "https://localhost:22623/config/worker", "https://[::1]:22623/config/worker",
		"https://10.0.0.1:22623/config/worker", "https://[2001:db8::1]/config/worker", "https://notexample.com/config/worker",
	}
	proxied := 0
	for _, https := range []string{"", "http://proxy:3128", "http://user:pass@proxy"} {
		for _, none := range []string{
			"", "*", "example.com", ".example.com", "*.example.com", "api-int.example.com", "API-INT.EXAMPLE.COM",
			"example.com:22623", "example.com:1",
			"10.0.0.1", "10.0.0.1:22623", "10.0.0.1:1", "10.0.0.0/8", "2001:db8::/32", "2001:db8::1", "[2001:db8::1]:443",
			"[2001:db8::1]:1",
			"other, example.com", ",", "com", "xample.com", "0.0.0.0/0",
		} {
			for _, source := range sources {
				oracle := httpproxy.Config{HTTPSProxy: https, NoProxy: none}
				target, err := url.Parse(source)
				if err != nil {
					t.Fatal(err)
				}
				want, err := oracle.ProxyFunc()(target)
				if err != nil {
					t.Fatal(err)
				}
				got := proxyFor(t, https, none, source)
				if (got == nil) != (want == nil) || got != nil && got.String() != want.String() {
					t.Errorf("httpsProxy %q, noProxy %q, source %s: have %v, want %v", https, none, source, got, want)
				}
				if got != nil {
					proxied++
				}
			}
		}
	}
	if proxied == 0 {
		t.Error("nothing went through a proxy")
	}
}

func proxyFor(t *testing.T, https, none, source string) *url.URL {
	t.Helper()
	settings := map[string]any{}
	if https != "" {
		settings["httpsProxy"] = https
	}
	if none != "" {
		settings["noProxy"] = []string{none}
	}
	raw, err := json.Marshal(settings)
	if err != nil {
		t.Fatal(err)
	}
	config, err := pointer.Parse([]byte(`{"ignition":{"version":"3.4.0","proxy":` + string(raw) + `,"config":{` +
		merge(source) + `}}}`))
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := config.Proxy(config.Sources()[0])
	if err != nil {
		t.Fatal(err)
	}
	return proxy
}
