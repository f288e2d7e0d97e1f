package pointer_test

import (
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/pointer"
)

func TestProxy(t *testing.T) {
	for _, c := range []struct{ name, proxy, source, want string }{
		{"none", ``, mcs, ""},
		{"for https", `"httpsProxy":"http://proxy:3128"`, mcs, "http://proxy:3128"},
		{"for http alone", `"httpProxy":"http://proxy:3128"`, mcs, ""},
		{"not for this host", `"httpsProxy":"http://proxy:3128","noProxy":["other","api-int.example.com"]`, mcs, ""},
		{"not for loopback", `"httpsProxy":"http://proxy:3128"`, "https://127.0.0.1:22623/config/worker", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			config, err := pointer.Parse([]byte(`{"ignition":{"version":"3.4.0","proxy":{` + c.proxy + `},"config":{` + merge(c.source) + `}}}`))
			if err != nil {
				t.Fatal(err)
			}
			proxy, err := config.Proxy(config.Sources()[0])
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if proxy != nil {
				got = proxy.String()
			}
			if got != c.want {
				t.Errorf("have %q, want %q", got, c.want)
			}
		})
	}
}
