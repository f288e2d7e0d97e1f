// SPDX-License-Identifier: Apache-2.0

package specversion_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/specversion"
)

// ignition is the header of Ignition 2.x (internal/resource/url.go). Its releases differ only
// in the version.
func ignition(version string) string {
	return "application/vnd.coreos.ignition+json;version=" + version + ", */*;q=0.1"
}

// old is the header of Ignition 0.x, from the Machine Config Server's tests.
const old = "application/vnd.coreos.ignition+json; version=2.4.0, application/vnd.coreos.ignition+json; version=1; " +
	"q=0.5, */*; q=0.1"

// The version that the Machine Config Server serves for a header, by its
// detectSpecVersionFromAcceptHeader in the release that limits newer minor versions to 3.5
// (MCO-2182).
func TestNegotiationIsTheMachineConfigServers(t *testing.T) {
	for _, c := range []struct{ name, header, want string }{
		{"Ignition 0.35", old, "2.2.0"},
		{"Ignition 2.0", ignition("3.0.0"), "3.0.0"},
		{"Ignition 2.3", ignition("3.1.0"), "3.1.0"},
		{"Ignition 2.6", ignition("3.2.0"), "3.2.0"},
		{"Ignition 2.14", ignition("3.3.0"), "3.3.0"},
		{"Ignition 2.16", ignition("3.4.0"), "3.4.0"},
		{"Ignition 2.20", ignition("3.5.0"), "3.5.0"},
		{"Ignition 2.26 is newer than the server", ignition("3.6.0"), "3.5.0"},
		{"an Ignition to come", ignition("3.99.0"), "3.5.0"},
		{"an experimental one", ignition("3.7.0-experimental"), "3.5.0"},
		{"no header", "", "2.2.0"},
		{"curl", "*/*", "2.2.0"},
		{"a browser", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", "2.2.0"},
		{"plain text", "text/plain", "2.2.0"},
		{"no media type at all", "an-invalid-accept-header", "2.2.0"},
		{"Ignition's type without a version", "application/vnd.coreos.ignition+json", "2.2.0"},
		{"a version that is none", ignition("3"), "2.2.0"},
		{"a version in quotes is none", ignition(`"3.2.0"`), "2.2.0"},
		{"a version of another type", "application/json;version=3.2.0", "2.2.0"},
		{"any main type will do", "text/vnd.coreos.ignition+json;version=3.2.0", "3.2.0"},
		{"another subtype in capitals is another", "application/VND.coreos.ignition+json;version=3.2.0", "2.2.0"},
		{"2.2", ignition("2.2.0"), "2.2.0"},
		{"2.3 is served as 2.2", ignition("2.3.0"), "2.2.0"},
		{"2.99 is served as 2.2", ignition("2.99.0"), "2.2.0"},
		{"2.1 is too old", ignition("2.1.0"), ""},
		{"1.0", ignition("1.0.0"), ""},
		{"4.0", ignition("4.0.0"), ""},
		{"0.0", ignition("0.0.0"), ""},
		{"the higher q wins", "a/vnd.coreos.ignition+json;version=3.1.0;q=0.5, a/vnd.coreos.ignition+json;version=3.4.0",
			"3.4.0"},
		{"of equal q the first wins", "a/vnd.coreos.ignition+json;version=3.1.0, a/vnd.coreos.ignition+json;version=3.4.0",
			"3.1.0"},
		{"the first part with a version decides, also when it is unsupported",
			"a/vnd.coreos.ignition+json;version=4.0.0, a/vnd.coreos.ignition+json;version=3.4.0;q=0.5", ""},
		{"an unsupported part of lower q does not decide",
			"a/vnd.coreos.ignition+json;version=4.0.0;q=0.5, a/vnd.coreos.ignition+json;version=3.4.0", "3.4.0"},
		{"a part beyond 1024 bytes counts", strings.Repeat("text/plain, ", 100) + "a/vnd.coreos.ignition+json;version=3.4.0",
			"3.4.0"},
		{"a part beyond 1024 bytes decides by its q", ignition("3.1.0;q=0.5") + strings.Repeat(", text/plain", 100) +
			", a/vnd.coreos.ignition+json;version=3.4.0", "3.4.0"},
		{"a minor version above 65535", ignition("3.65536.0"), "3.5.0"},
		{"a minor version of 64 bits is invalid", ignition("3.9223372036854775808.0"), "2.2.0"},
		{"an invalid suffix", ignition("3.4.0-_"), "2.2.0"},
		{"an empty part of a suffix", ignition("3.4.0-a..b"), "2.2.0"},
		{"build metadata", ignition("3.4.0+build.7"), "3.4.0"},
		{"a q of NaN keeps its place",
			"a/vnd.coreos.ignition+json;version=3.1.0;q=NaN, a/vnd.coreos.ignition+json;version=3.4.0", "3.1.0"},
		{"q before the version",
			"a/vnd.coreos.ignition+json;q=0.2;version=3.1.0, a/vnd.coreos.ignition+json;version=3.2.0;q=0.3", "3.2.0"},
		{"a q that is none counts as 1",
			"a/vnd.coreos.ignition+json;version=3.1.0;q=0.9, a/vnd.coreos.ignition+json;version=3.2.0;q=x", "3.2.0"},
		{"other parameters do not count", "a/vnd.coreos.ignition+json;charset=utf-8;version=3.1.0;x", "3.1.0"},
		{"spaces do not count", "  a/vnd.coreos.ignition+json  ;  version=3.1.0  ", "3.1.0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := specversion.ParseAccept(c.header).Negotiate()
			if c.want == "" {
				if err == nil {
					t.Errorf("got %s, want the server's 400", got)
				}
				return
			}
			if err != nil || got.String() != c.want {
				t.Errorf("got %s, %v, want %s", got, err, c.want)
			}
		})
	}
}

// The gate must accept whatever version the server selects for a client.
func TestNegotiate_ReturnsAnAcceptedVersion(t *testing.T) {
	for _, version := range []string{"2.2.0", "2.4.0", "3.0.0", "3.1.0", "3.2.0", "3.3.0", "3.4.0", "3.5.0", "3.6.0",
		"3.7.0-experimental", "3.65535.0"} {
		a := specversion.ParseAccept(ignition(version))
		if v, err := a.Negotiate(); err != nil || !a.Accepts(v) {
			t.Errorf("%s: serves %s (%v), which the client does not take", version, v, err)
		}
	}
}

func TestAccepts(t *testing.T) {
	v := func(major, minor int) specversion.Version { return specversion.Version{Major: major, Minor: minor} }
	for _, c := range []struct {
		name, header string
		version      specversion.Version
		want         bool
	}{
		{"the same", ignition("3.2.0"), v(3, 2), true},
		{"an older minor version", ignition("3.2.0"), v(3, 0), true},
		{"a newer minor version", ignition("3.2.0"), v(3, 3), false},
		{"another major version", ignition("3.2.0"), v(2, 2), false},
		{"a client that names none reads 2.2", "", v(2, 2), true},
		{"a client that names none does not read 3.0", "", v(3, 0), false},
		{"any of several", old, v(2, 4), true},
	} {
		if got := specversion.ParseAccept(c.header).Accepts(c.version); got != c.want {
			t.Errorf("%s: %t", c.name, got)
		}
	}
}

func TestOf(t *testing.T) {
	for _, c := range []struct{ name, config, want string }{
		{"a config", `{"ignition":{"version":"3.4.0"}}`, "3.4.0"},
		{"with white space around it", "\n{\"ignition\": {\"version\": \"2.2.0\"}, \"storage\": {}}\n ", "2.2.0"},
		{"empty", ``, ""},
		{"an empty object", `{}`, ""},
		{"null", `null`, ""},
		{"a list", `[]`, ""},
		{"half a config", `{"ignition":{"version":"3.4.0"},"storage":{"files":[`, ""},
		{"a config and more", `{"ignition":{"version":"3.4.0"}} trailing`, ""},
		{"two configs", `{"ignition":{"version":"3.4.0"}}{"ignition":{"version":"3.4.0"}}`, ""},
		{"an empty version", `{"ignition":{"version":""}}`, ""},
		{"a version of two parts", `{"ignition":{"version":"3.4"}}`, ""},
		{"a version of spec 1", `{"ignitionVersion":1}`, ""},
		{"a number", `{"ignition":{"version":3}}`, ""},
		{"an HTML page", `<html>502 Bad Gateway</html>`, ""},
		{"experimental", `{"ignition":{"version":"3.7.0-experimental"}}`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := specversion.Of([]byte(c.config))
			switch {
			case c.want == "" && err == nil:
				t.Errorf("got %s", got)
			case c.want != "" && (err != nil || got.String() != c.want):
				t.Errorf("got %s, %v, want %s", got, err, c.want)
			}
		})
	}
	if _, err := specversion.Of([]byte(`{"ignition":{"version":"3.7.0-experimental"}}`)); !errors.Is(err,
		specversion.ErrExperimental) {
		t.Errorf("experimental: %v", err)
	}
	if _, err := specversion.Of([]byte("{\n\"a\": 1,\n}")); err == nil || !strings.Contains(err.Error(), "line 3") {
		t.Errorf("the line of a syntax error: %v", err)
	}
}

func FuzzAccept(f *testing.F) {
	for _, header := range []string{"", "*/*", old, ignition("3.6.0"), ignition("1.0.0"),
		"a/vnd.coreos.ignition+json;q=NaN;version=3.0.0", ",;=/", strings.Repeat(ignition("3.1.0")+",", 50)} {
		f.Add(header)
	}
	f.Fuzz(func(t *testing.T, header string) {
		a := specversion.ParseAccept(header)
		v, err := a.Negotiate()
		if err != nil {
			return
		}
		if v.Major != 2 && v.Major != 3 || v.Major == 2 && v.Minor != 2 || v.Major == 3 && (v.Minor < 0 || v.Minor > 5) {
			t.Fatalf("%q: serves %s", header, v)
		}
		if !a.Accepts(v) {
			t.Fatalf("%q: serves %s, which the client does not take", header, v)
		}
	})
}

func FuzzOf(f *testing.F) {
	f.Add([]byte(`{"ignition":{"version":"3.4.0"}}`))
	f.Add([]byte(`{"ignition":{"version":"3.4.0"}} x`))
	f.Add([]byte(`[[[[`))
	f.Fuzz(func(t *testing.T, config []byte) {
		if v, err := specversion.Of(config); err == nil && (v.Major < 0 || v.Minor < 0) {
			t.Fatalf("%q: %s", config, v)
		}
	})
}
