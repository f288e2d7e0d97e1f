// SPDX-License-Identifier: Apache-2.0

package pointer_test

import (
	"encoding/base64"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
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

// Ignition uses the proxy of a config in a data source for what it fetches afterwards.
func TestProxy_OfConfigsInDataSources(t *testing.T) {
	config := func(proxy, sources string) string {
		return `{"ignition":{"version":"3.4.0","proxy":{` + proxy + `},"config":{` + sources + `}}}`
	}
	merge := func(sources ...string) string {
		var entries []string
		for _, s := range sources {
			entries = append(entries, `{"source":"`+s+`"}`)
		}
		return `"merge":[` + strings.Join(entries, ",") + `]`
	}
	inData := func(config string) string {
		return "data:;base64," + base64.StdEncoding.EncodeToString([]byte(config))
	}
	through := func(name string) string { return `"httpsProxy":"http://` + name + `:3128"` }
	for name, c := range map[string]struct {
		config string
		want   []string // of each source
	}{
		"its own":                   {config(through("own"), merge(mcs)), []string{"own"}},
		"of a nested config":        {config("", merge(inData(config(through("inner"), merge(mcs))))), []string{"inner"}},
		"inherited by a nested one": {config(through("own"), merge(inData(config("", merge(mcs))))), []string{"own"}},
		"replaced in a nested one": {config(through("own"), merge(inData(config(through("inner"), merge(mcs))))),
			[]string{"inner"}},
		"of an earlier source": {config("", merge(inData(config(through("first"), "")), mcs)), []string{"first"}},
		"of a later source":    {config("", merge(mcs, inData(config(through("second"), "")))), []string{""}},
		"an earlier source's noProxy": {config(through("own"), merge(inData(config(`"noProxy":["example.com"]`, "")), mcs)),
			[]string{""}},
		"not of a config that is replaced": {config(through("own"), `"replace":{"source":"`+
			inData(config("", merge(mcs)))+`"}`), []string{""}},
		"after a remote source": {config(through("own"), merge(inData(config("", merge(inData(config(
			`"httpProxy":"http://deep"`, ""))))), mcs, mcs+"-other")), []string{"", "own"}},
		"after a source in a nested one": {config("", merge(inData(config("",
			merge(inData(config(through("deep"), "")), mcs))), mcs+"-other")), []string{"deep", "deep"}},
	} {
		t.Run(name, func(t *testing.T) {
			parsed, err := pointer.Parse([]byte(c.config))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, s := range parsed.Sources() {
				proxy, err := parsed.Proxy(s)
				if err != nil {
					t.Fatal(err)
				}
				if proxy == nil {
					proxy = &url.URL{}
				}
				got = append(got, proxy.Hostname())
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("have %q, want %q", got, c.want)
			}
		})
	}
	parsed, err := pointer.Parse([]byte(config("", merge(mcs))))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parsed.Proxy(pointer.Source{Where: "elsewhere", URL: mcs}); err == nil {
		t.Error("a source that the config does not have")
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
