// SPDX-License-Identifier: Apache-2.0

package platform_test

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcs-attest/mcs-attest/agent/internal/guestinfo"
	"github.com/mcs-attest/mcs-attest/agent/internal/guestinfo/guestinfotest"
	"github.com/mcs-attest/mcs-attest/agent/internal/platform"
	"github.com/mcs-attest/mcs-attest/pkg/pointer"
)

func gz(content string) string {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = w.Write([]byte(content))
	_ = w.Close()
	return out.String()
}

func b64(content string) string { return base64.StdEncoding.EncodeToString([]byte(content)) }

func ovfEnvironment(properties ...string) string {
	var b strings.Builder
	b.WriteString(`<?xml version="1.0" encoding="UTF-8"?>
<Environment xmlns="http://schemas.dmtf.org/ovf/environment/1"
  xmlns:oe="http://schemas.dmtf.org/ovf/environment/1" oe:id="">
 <PlatformSection><Kind>VMware ESXi</Kind></PlatformSection>
 <PropertySection>`)
	for i := 0; i < len(properties); i += 2 {
		b.WriteString(`<Property oe:key="` + properties[i] + `" oe:value="` + properties[i+1] + `"/>`)
	}
	b.WriteString(`</PropertySection></Environment>`)
	return b.String()
}

func TestVMware(t *testing.T) {
	const data, encoding, ovf = "ignition.config.data", "ignition.config.data.encoding", "ovfenv"
	type vars = map[string]string
	for _, c := range []struct {
		name string
		vars vars
		want outcome
	}{
		{"plain", vars{data: "{}"}, outcome{data: "{}"}},
		{"base64", vars{data: b64("{}"), encoding: "base64"}, outcome{data: "{}"}},
		{"b64", vars{data: b64("{}"), encoding: "b64"}, outcome{data: "{}"}},
		{"gzip", vars{data: gz("{}"), encoding: "gzip"}, outcome{data: "{}"}},
		{"gz", vars{data: gz("{}"), encoding: "gz"}, outcome{data: "{}"}},
		{"gzip+base64", vars{data: b64(gz("{}")), encoding: "gzip+base64"}, outcome{data: "{}"}},
		{"gz+b64", vars{data: b64(gz("{}")), encoding: "gz+b64"}, outcome{data: "{}"}},
		{"a property of the vApp", vars{ovf: ovfEnvironment("guestinfo."+data, b64("{}"), "guestinfo."+encoding, "base64")},
			outcome{data: "{}"}},
		{"a property with quotes", vars{ovf: ovfEnvironment("guestinfo."+data, "{&quot;ignition&quot;:{}}")},
			outcome{data: `{"ignition":{}}`}},
		{"the variable comes before the property", vars{
			data: b64("variable"), encoding: "base64",
			ovf: ovfEnvironment("guestinfo."+data, "property", "guestinfo."+encoding, "gzip"),
		}, outcome{data: "variable"}},
		{"one variable and one property", vars{data: b64("variable"), ovf: ovfEnvironment("guestinfo."+encoding, "base64")},
			outcome{data: "variable"}},
		{"a broken environment is ignored", vars{data: "{}", ovf: "<Environment><PropertySection>"}, outcome{data: "{}"}},
		{"an environment that is too large is ignored", vars{data: "{}", ovf: strings.Repeat("<a>", 7<<20)},
			outcome{data: "{}"}},
		{"nothing", vars{}, outcome{kind: platform.ErrNone}},
		{"only a broken environment", vars{ovf: "]]>"}, outcome{kind: platform.ErrNone}},
		{"an empty variable", vars{data: ""}, outcome{kind: platform.ErrNone}},
		{"an unknown encoding", vars{data: "{}", encoding: "zstd"},
			outcome{text: `unknown encoding "zstd"`}},
		{"an unknown encoding within a known one", vars{data: "{}", encoding: "gzip+"},
			outcome{text: "unknown encoding"}},
		{"data that is not base64", vars{data: "{}", encoding: "base64"}, outcome{text: "not base64"}},
		{"data that is not gzip", vars{data: "{}", encoding: "gzip"}, outcome{text: "not gzip"}},
		{"truncated gzip", vars{data: gz("some longer text, some longer text")[:20], encoding: "gzip"},
			outcome{text: "unpacked content"}},
		{"gzip of too much", vars{data: gz(strings.Repeat("\x00", pointer.MaxSize+1)), encoding: "gzip"},
			outcome{text: "more than 16777216 bytes"}},
		{"a variable that is too large", vars{data: strings.Repeat("x", 2*pointer.MaxSize)}, outcome{text: "the limit is"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := &guestinfotest.Hypervisor{Variables: c.vars}
			m := machine(t, "vmware", short)
			m.Backdoor = func() (guestinfo.Port, error) { return h.Port, nil }
			c.want.check(t, m)
		})
	}
	t.Run("not on VMware", func(t *testing.T) {
		m := machine(t, "vmware", short)
		m.Backdoor = func() (guestinfo.Port, error) { return nil, guestinfo.ErrNoVMware }
		outcome{kind: guestinfo.ErrNoVMware}.check(t, m)
	})
	t.Run("a hypervisor that does not answer", func(t *testing.T) {
		m := machine(t, "vmware", short)
		m.Backdoor = func() (guestinfo.Port, error) { return (&guestinfotest.Hypervisor{Closed: true}).Port, nil }
		outcome{text: "did not open a channel"}.check(t, m)
	})
}

// rejecting returns a port on which the hypervisor rejects the first opens. A read tries two, with and without cookies.
func rejecting(h *guestinfotest.Hypervisor, opens int) guestinfo.Port {
	return func(in guestinfo.Registers) guestinfo.Registers {
		if in.CX>>16 == 0 && opens > 0 {
			opens--
			in.CX = 0
			return in
		}
		return h.Port(in)
	}
}

// One failed message is not the answer. Without the environment, its property would be missing.
func TestVMware_ReadsAgainAfterAFailedMessage(t *testing.T) {
	const data = "ignition.config.data"
	for name, variables := range map[string]map[string]string{
		"a variable": {data: "{}"},
		"a property": {"ovfenv": ovfEnvironment("guestinfo."+data, "{}")},
	} {
		for _, opens := range []int{2, 3, 6} {
			t.Run(fmt.Sprintf("%s, %d opens", name, opens), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					h := &guestinfotest.Hypervisor{Variables: variables}
					port := rejecting(h, opens)
					m := machine(t, "vmware", 0) // no limit, as in the agent
					m.Backdoor = func() (guestinfo.Port, error) { return port, nil }
					var why recorder
					m.Waiting = why.waiting
					data, err := m.Find(t.Context())
					if err != nil || string(data.Raw) != "{}" ||
						!why.has("VMware guestinfo: the hypervisor did not open a channel") {
						t.Errorf("%q and error %v, reported %q", data.Raw, err, why.reasons)
					}
				})
			})
		}
	}
}

// Ignition could still read the variables, and request the config without a token.
func TestVMware_StopsIfEachReadFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := machine(t, "vmware", 0)
		m.Backdoor = func() (guestinfo.Port, error) { return (&guestinfotest.Hypervisor{Closed: true}).Port, nil }
		began := time.Now()
		data, err := m.Find(t.Context())
		if took := time.Since(began); !errors.Is(err, platform.ErrUnreadable) || took != 30*time.Second ||
			!strings.Contains(err.Error(), "VMware guestinfo: the hypervisor did not open a channel") {
			t.Errorf("after %v: %q and error %v", took, data.Raw, err)
		}
	})
}

func TestOVFProperties(t *testing.T) {
	for _, c := range []struct{ name, document, want string }{
		{"attributes without a namespace", `<E><PropertySection><Property key="k" value="v"/></PropertySection></E>`, "v"},
		{"the last of two",
			`<E><PropertySection><Property key="k" value="u"/><Property key="k" value="v"/></PropertySection></E>`, "v"},
		{"in a second section", `<E><PropertySection/><PropertySection><Property key="k" value="v"/></PropertySection></E>`,
			"v"},
		{"too deep", `<E><x><PropertySection><Property key="k" value="v"/></PropertySection></x></E>`, ""},
		{"not in a section", `<E><Property key="k" value="v"/></E>`, ""},
		{"after the root element", `<E/><E><PropertySection><Property key="k" value="v"/></PropertySection></E>`, ""},
	} {
		got, err := platform.OVFProperties(c.document)
		if err != nil || got["k"] != c.want {
			t.Errorf("%s: %q, %v", c.name, got, err)
		}
	}
	deep := func(n int) string {
		return strings.Repeat("<x>", n) + strings.Repeat("</x>", n)
	}
	for name, honest := range map[string]string{"the largest depth": deep(16),
		"the largest size": "<E>" + strings.Repeat(" ", 1<<20-7) + "</E>"} {
		if _, err := platform.OVFProperties(honest); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, hostile := range map[string]string{
		"too deep": deep(17), "unlimited depth": strings.Repeat("<a>", 1<<18),
		"too large": "<E>" + strings.Repeat(" ", 1<<20) + "</E>",
	} {
		if got, err := platform.OVFProperties(hostile); err == nil {
			t.Errorf("%s: %q", name, got)
		}
	}
	for _, broken := range []string{"", "<E>", "<E></F>", "</E>", "<E", "text"} {
		if got, err := platform.OVFProperties(broken); err == nil {
			t.Errorf("%q: %q", broken, got)
		}
	}
}

func FuzzOVFProperties(f *testing.F) {
	f.Add(ovfEnvironment("guestinfo.ignition.config.data", "e30="))
	f.Add("</x>")
	f.Fuzz(func(t *testing.T, document string) {
		if got, err := platform.OVFProperties(document); err == nil && got == nil {
			t.Error("neither properties nor an error")
		}
	})
}
