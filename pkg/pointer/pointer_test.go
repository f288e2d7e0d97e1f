// SPDX-License-Identifier: Apache-2.0

package pointer_test

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/coreos/ignition/v2/config/v3_6"

	"github.com/mcs-attest/mcs-attest/pkg/pointer"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

const (
	origin = "https://api-int.example.com:22623"
	mcs    = origin + "/config/worker"
	token  = "eyJhbGciOiJFUzI1NiJ9.e30.c2ln"
)

// config returns a pointer config with the given text as its ignition.config.
func config(version, inner string) string {
	return fmt.Sprintf(`{"ignition":{"version":%q,"config":{%s}}}`, version, inner)
}

func merge(source string) string { return fmt.Sprintf(`"merge":[{"source":%q}]`, source) }

const header = `"httpHeaders":[{"name":"Authorization","value":"Bearer ` + token + `"}]`

func add(raw string) (string, error) {
	c, err := pointer.Parse([]byte(raw))
	if err != nil {
		return "", err
	}
	out, err := c.AddBearer(origin, "worker", secret.New([]byte(token)))
	return string(out), err
}

// Every case has the whole text before and after, so nothing else may change.
func TestAddBearer(t *testing.T) {
	for _, c := range []struct{ name, before, after string }{
		{
			"a merge source gets the header",
			config("3.4.0", merge(mcs)),
			config("3.4.0", `"merge":[{"source":"`+mcs+`",`+header+`}]`),
		},
		{
			"a replace stays a replace",
			config("3.4.0", `"replace":{"source":"`+mcs+`"}`),
			config("3.4.0", `"replace":{"source":"`+mcs+`",`+header+`}`),
		},
		{
			"specification 3.0, which ignores httpHeaders, becomes 3.1",
			config("3.0.0", merge(mcs)),
			config("3.1.0", `"merge":[{"source":"`+mcs+`",`+header+`}]`),
		},
		{
			"an Authorization header in another case is replaced, others stay",
			config("3.1.0", `"merge":[{"source":"`+mcs+
				`","httpHeaders":[{"name":"NodePool","value":"x"},{"name":"authorization","value":"Bearer old"}]}]`),
			config("3.1.0", `"merge":[{"source":"`+mcs+
				`","httpHeaders":[{"name":"NodePool","value":"x"},{"name":"Authorization","value":"Bearer `+token+`"}]}]`),
		},
		{
			"two spellings of Authorization become one",
			config("3.1.0",
				`"merge":[{"httpHeaders":[{"name":"authorization","value":"a"},{"name":"AUTHORIZATION","value":"b"}],"source":"`+
					mcs+`"}]`),
			config("3.1.0", `"merge":[{`+header+`,"source":"`+mcs+`"}]`),
		},
		{
			"null headers are no headers",
			config("3.1.0", `"merge":[{"source":"`+mcs+`","httpHeaders":null}]`),
			config("3.1.0", `"merge":[{"source":"`+mcs+`",`+header+`}]`),
		},
		{
			"compression and verification stay unchanged",
			config("3.1.0", `"merge":[{"source":"`+mcs+`","compression":"gzip","verification":{"hash":"sha256-`+
				strings.Repeat("0", 64)+`"}}]`),
			config("3.1.0", `"merge":[{"source":"`+mcs+`","compression":"gzip","verification":{"hash":"sha256-`+
				strings.Repeat("0", 64)+`"},`+header+`}]`),
		},
		{
			"unknown keys, order, numbers and space are preserved",
			"{ \"x-ours\": [1.50, 1e3],\n  \"ignition\": {\n\t\"config\": { " + merge(mcs) +
				" } ,\"version\" : \"3.2.0\" },\n \"storage\": {\"files\": []} }\n",
			"{ \"x-ours\": [1.50, 1e3],\n  \"ignition\": {\n\t\"config\": { \"merge\":[{\"source\":\"" + mcs + "\"," + header +
				"}] } ,\"version\" : \"3.2.0\" },\n \"storage\": {\"files\": []} }\n",
		},
		{
			"keys in another case are Ignition's keys too",
			`{"Ignition":{"Version":"3.2.0","CONFIG":{"Merge":[{"Source":"` + mcs + `"}]}}}`,
			`{"Ignition":{"Version":"3.2.0","CONFIG":{"Merge":[{"Source":"` + mcs + `",` + header + `}]}}}`,
		},
		{
			"escapes in the source are read",
			config("3.2.0", `"merge":[{"source":"https:\/\/api-int.example.com:22623\/config\/\u0077orker"}]`),
			config("3.2.0", `"merge":[{"source":"https:\/\/api-int.example.com:22623\/config\/\u0077orker",`+header+`}]`),
		},
		{
			"host names have no case",
			config("3.2.0", merge("https://API-int.Example.com:22623/config/worker")),
			config("3.2.0", `"merge":[{"source":"https://API-int.Example.com:22623/config/worker",`+header+`}]`),
		},
		{
			"the pool is the path's last element, as the server reads it",
			config("3.2.0", merge(origin+"/config/master/worker")),
			config("3.2.0", `"merge":[{"source":"`+origin+`/config/master/worker",`+header+`}]`),
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			after, err := add(c.before)
			if err != nil {
				t.Fatal(err)
			}
			if after != c.after {
				t.Errorf("have %s\nwant %s", after, c.after)
			}
			if _, rpt, err := v3_6.ParseCompatibleVersion([]byte(after)); err != nil {
				t.Errorf("Ignition rejects it: %v\n%s", err, rpt.String())
			}
		})
	}
}

// Attack T56: only the attested server's sources receive the token.
func TestAttack_T56_TokenGoesOnlyToTheAttestedServer(t *testing.T) {
	two := func(other string) string {
		return config("3.4.0", `"merge":[{"source":"`+mcs+`"},{"source":"`+other+`"}]`)
	}
	if after, err := add(two("https://other.example.com:22623/config/worker")); err != nil ||
		strings.Count(after, token) != 1 {
		t.Fatalf("the valid case: %v\n%s", err, after)
	}
	for _, c := range []struct{ name, other string }{
		{"another host", "https://other.example.com:22623/config/worker"},
		{"another port", "https://api-int.example.com:443/config/worker"},
		{"no port", "https://api-int.example.com/config/worker"},
		{"plain http on the same host", "http://api-int.example.com:22623/config/worker"},
		{"the plain port", "http://api-int.example.com:22624/config/worker"},
		{"another pool", origin + "/config/master"},
		{"another path", origin + "/healthz"},
		{"a path that only begins like it", origin + "/configs/worker"},
		{"a name that ends like it", "https://evil-api-int.example.com:22623/config/worker"},
		{"a name that begins like it", "https://api-int.example.com.evil.example:22623/config/worker"},
		{"the host as user name", "https://api-int.example.com:22623@evil.example/config/worker"},
		{"a user name at the right host", "https://user@api-int.example.com:22623/config/worker"},
		{"a trailing dot", "https://api-int.example.com.:22623/config/worker"},
		{"a data URL", "data:,%7B%7D"},
		{"s3", "s3://api-int.example.com/config/worker"},
	} {
		t.Run(c.name, func(t *testing.T) {
			after, err := add(two(c.other))
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(after, token); n != 1 {
				t.Fatalf("the token occurs %d times: %s", n, after)
			}
			parsed, _, err := v3_6.ParseCompatibleVersion([]byte(after))
			if err != nil {
				t.Fatal(err)
			}
			if m := parsed.Ignition.Config.Merge; len(m[0].HTTPHeaders) != 1 || len(m[1].HTTPHeaders) != 0 {
				t.Errorf("headers: %v", m)
			}
			// A config with only such a source receives no token.
			if _, err := add(config("3.4.0", merge(c.other))); !errors.Is(err, pointer.ErrNoSource) {
				t.Errorf("only this source: %v", err)
			}
		})
	}
}

// Attack T56: a config that is not one unambiguous pointer config is rejected as a whole.
func TestAttack_T56_InvalidPointerConfigs(t *testing.T) {
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	if _, err := w.Write([]byte(config("3.4.0", merge(mcs)))); err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	if _, err := add(config("3.4.0", merge(mcs))); err != nil {
		t.Fatalf("the valid case: %v", err)
	}
	for _, c := range []struct {
		name, raw string
		want      error
	}{
		{"nothing", "", pointer.ErrEmpty},
		{"white space", " \n", pointer.ErrEmpty},
		{"cloud-config", "#cloud-config\nusers: []\n", pointer.ErrNotIgnition},
		{"a shell script", "#!/bin/sh\n", pointer.ErrNotIgnition},
		{"compressed", zipped.String(), pointer.ErrNotIgnition},
		{"JSON of another kind", `{"a":1}`, pointer.ErrNotIgnition},
		{"JSON that is not an object", `[1]`, pointer.ErrNotIgnition},
		{"cut short", config("3.4.0", merge(mcs))[:60], pointer.ErrNotIgnition},
		{"a byte too many", config("3.4.0", merge(mcs)) + "}", pointer.ErrNotIgnition},
		{"ignition without a version", `{"ignition":{}}`, pointer.ErrNotIgnition},
		{"null", `{"ignition":null}`, pointer.ErrNotIgnition},
		{"specification 2.2", `{"ignition":{"version":"2.2.0"}}`, pointer.ErrVersion},
		{"an experimental specification", config("3.99.0-experimental", merge(mcs)), pointer.ErrVersion},
		{"no version number", config("three", merge(mcs)), pointer.ErrVersion},
		{"the version is a number", `{"ignition":{"version":3}}`, pointer.ErrInvalid},
		{"the same source twice", config("3.4.0", `"merge":[{"source":"`+mcs+`"},{"source":"`+mcs+`"}]`), pointer.ErrInvalid},
		{"the same header name twice", config("3.4.0", `"merge":[{"source":"`+
			mcs+`","httpHeaders":[{"name":"A","value":"1"},{"name":"A","value":"2"}]}]`), pointer.ErrInvalid},
		{"two ignition keys", `{"ignition":{"version":"3.4.0"},"ignition":{"version":"3.4.0","config":{` + merge(mcs) + `}}}`,
			pointer.ErrAmbiguous},
		{"two sources in one entry", config("3.4.0", `"merge":[{"source":"`+mcs+
			`","Source":"https://evil.example/config/worker"}]`), pointer.ErrAmbiguous},
		{"two merges", config("3.4.0", merge(mcs)+`,"MERGE":[]`), pointer.ErrAmbiguous},
		{"two header lists", config("3.4.0", `"merge":[{"source":"`+mcs+`","httpHeaders":[],"HTTPHeaders":[]}]`),
			pointer.ErrAmbiguous},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := pointer.Parse([]byte(c.raw)); !errors.Is(err, c.want) {
				t.Errorf("have %v, want %v", err, c.want)
			}
		})
	}
}

func TestAddBearer_RejectsInvalidTokens(t *testing.T) {
	c, err := pointer.Parse([]byte(config("3.4.0", merge(mcs))))
	if err != nil {
		t.Fatal(err)
	}
	for _, token := range []string{"", `a"b`, "a b", "a\r\nX: y", "=a", "ä"} {
		if _, err := c.AddBearer(origin, "worker", secret.New([]byte(token))); err == nil {
			t.Errorf("token %q was accepted", token)
		}
	}
}

func dataURL(raw string) string {
	return "data:;base64," + base64.StdEncoding.EncodeToString([]byte(raw))
}

func TestNestedConfig(t *testing.T) {
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	inner := config("3.0.0", merge(mcs))
	if _, err := w.Write([]byte(inner)); err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	outer := config("3.4.0", `"merge":[{"source":"`+dataURL(zipped.String())+
		`","compression":"gzip","verification":{"hash":"sha512-`+strings.Repeat("0", 128)+`"}}]`)
	c, err := pointer.Parse([]byte(outer))
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Sources(); len(got) != 1 || got[0].Where != "ignition.config.merge[0] > ignition.config.merge[0]" {
		t.Fatalf("sources %v", got)
	}
	after, err := add(outer)
	if err != nil {
		t.Fatal(err)
	}
	want := config("3.4.0", `"merge":[{"source":"`+dataURL(config("3.1.0", `"merge":[{"source":"`+mcs+`",`+header+`}]`))+
		`","compression":null,"verification":null}]`)
	if after != want {
		t.Errorf("have %s\nwant %s", after, want)
	}
}

func TestParse_LimitsNesting(t *testing.T) {
	raw := config("3.4.0", merge(mcs))
	for range pointer.MaxDepth {
		raw = config("3.4.0", merge(dataURL(raw)))
	}
	if after, err := add(raw); err != nil || after == raw {
		t.Fatalf("at the greatest depth: %v", err)
	}
	if _, err := add(config("3.4.0", merge(dataURL(raw)))); !errors.Is(err, pointer.ErrNoSource) {
		t.Errorf("one deeper: %v", err)
	}
}

func TestSources(t *testing.T) {
	c, err := pointer.Parse([]byte(config("3.4.0",
		`"replace":{"source":"http://10.0.0.1:22624/config/master"},"merge":[`+
			`{"source":"https://[2001:DB8::1]/config/worker/"},{"source":"https://example.com/other"},{"source":"`+
			mcs+`?x=1"}]`)))
	if err != nil {
		t.Fatal(err)
	}
	want := []pointer.Source{
		{Where: "ignition.config.replace", URL: "http://10.0.0.1:22624/config/master", Origin: "http://10.0.0.1:22624",
			Pool: "master"},
		{Where: "ignition.config.merge[0]", URL: "https://[2001:DB8::1]/config/worker/", Origin: "https://[2001:db8::1]:443",
			Pool: "worker", Secure: true},
		{Where: "ignition.config.merge[2]", URL: mcs + "?x=1", Origin: origin, Pool: "worker", Secure: true},
	}
	if got := c.Sources(); !slices.Equal(got, want) {
		t.Errorf("have %+v\nwant %+v", got, want)
	}
}

func TestScrub(t *testing.T) {
	// Ignition's cached config: its newest version, with the header of the pointer config.
	before := `{"ignition":{"version":"3.9.0-experimental","config":{"replace":{"source":null,"httpHeaders":[{"name":"AUTHORIZATION","value":"Bearer ` + token + `"}]},` +
		`"merge":[{"source":"` + mcs + `","httpHeaders":[{"name":"Authorization","value":"Bearer ` + token +
		`"},{"name":"NodePool","value":"x"}]},{"httpHeaders":[]},{}]}},` +
		`"storage":{"files":[{"path":"/a","contents":{"source":"https://x","httpHeaders":[{"name":"Authorization","value":"a file's own"}]}}]}}`
	want := `{"ignition":{"version":"3.9.0-experimental","config":{"replace":{"source":null,"httpHeaders":[]},` +
		`"merge":[{"source":"` + mcs + `","httpHeaders":[{"name":"NodePool","value":"x"}]},{"httpHeaders":[]},{}]}},` +
		`"storage":{"files":[{"path":"/a","contents":{"source":"https://x","httpHeaders":[{"name":"Authorization","value":"a file's own"}]}}]}}`
	after, n, err := pointer.Scrub([]byte(before))
	if err != nil || n != 2 {
		t.Fatalf("%d headers, error %v", n, err)
	}
	if string(after) != want {
		t.Errorf("have %s\nwant %s", after, want)
	}
	again, n, err := pointer.Scrub(after)
	if err != nil || n != 0 || !bytes.Equal(again, after) {
		t.Errorf("scrubbing again: %d headers, error %v", n, err)
	}
	for _, raw := range []string{`{}`, `{"ignition":{"config":null}}`, `{"ignition":{"config":{}}}`} {
		if after, n, err := pointer.Scrub([]byte(raw)); err != nil || n != 0 || string(after) != raw {
			t.Errorf("%s: %d headers, error %v", raw, n, err)
		}
	}
	for _, raw := range []string{"", "{", `{"ignition":{},"ignition":{}}`} {
		if _, _, err := pointer.Scrub([]byte(raw)); err == nil {
			t.Errorf("%q was accepted", raw)
		}
	}
}

// A token that Scrub removes from an entry of a server must not remain in another place of the config, in
// whatever form.
func TestScrub_FindsARemovedTokenInAnotherPlace(t *testing.T) {
	const token = token + ".0123456789" // long enough not to occur by chance
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write([]byte("Bearer " + token)); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	const bearer = `{"name":"Authorization","value":"Bearer ` + token + `"}`
	gzipped := "data:;base64," + base64.StdEncoding.EncodeToString(packed.Bytes())
	percent := fmt.Sprintf("%%%02X", token[0]) + token[1:]
	for name, c := range map[string]struct {
		source, header string // the entry's
		other          string // the string that is elsewhere
		left           bool
	}{
		"as it is":                       {mcs, bearer, token, true},
		"percent-encoded":                {mcs, bearer, percent, true},
		"in gzip":                        {mcs, bearer, gzipped, true},
		"a member named Value":           {mcs, `{"name":"Authorization","VALUE":"Bearer ` + token + `"}`, token, true},
		"nowhere":                        {mcs, bearer, "", false},
		"another member of the header":   {mcs, `{"name":"Authorization","note":"Bearer ` + token + `"}`, token, false},
		"another scheme than Bearer":     {mcs, `{"name":"Authorization","value":"Basic ` + token + `"}`, token, false},
		"not of a Machine Config Server": {"https://x", bearer, token, false},
		"shorter than a token":           {mcs, `{"name":"Authorization","value":"Bearer abc"}`, "abc", false},
	} {
		raw := config("3.4.0", `"merge":[{"source":"`+c.source+`","httpHeaders":[`+c.header+`]}]`)
		raw = strings.TrimSuffix(raw, "}") + `,"storage":{"files":[{"path":"/a","contents":{"source":"` + c.other + `"}}]}}`
		out, n, err := pointer.Scrub([]byte(raw))
		if n != 1 || errors.Is(err, pointer.ErrTokenLeft) != c.left || (err == nil) == c.left ||
			bytes.Contains(out, []byte("httpHeaders\":[{")) {
			t.Errorf("%s: %d removed, error %v\n%s", name, n, err, out)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, raw := range []string{
		"", "{}", config("3.0.0", merge(mcs)), config("3.6.0", `"replace":{"source":"`+mcs+`"}`),
		config("3.4.0", merge(dataURL(config("3.1.0", merge(mcs))))),
		config("3.4.0", merge(dataURL(config("3.1.0", merge(dataURL(config("3.1.0", merge(mcs)))))))),
		config("3.1.0", `"merge":[{"source":"`+mcs+
			`","httpHeaders":[{"name":"a\"b","value":"c"},{"name":"authorization"}]}]`),
		`{"ignition":{"version":"3.4.0","security":{"tls":{"certificateAuthorities":[{"source":"data:,x"}]}}}}`,
	} {
		f.Add([]byte(raw))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := pointer.Parse(raw)
		if err != nil {
			return
		}
		_, _ = c.CertificateAuthorities()
		for _, s := range c.Sources() {
			out, err := c.AddBearer(s.Origin, s.Pool, secret.New([]byte(token)))
			if errors.Is(err, pointer.ErrNoSource) && !s.Secure {
				continue
			}
			if err != nil {
				t.Fatalf("source %+v: %v", s, err)
			}
			scrubbed, n, err := pointer.Scrub(out, secret.New([]byte(token)))
			if errors.Is(err, pointer.ErrTokenLeft) && bytes.Contains(raw, []byte(token)) {
				continue // the input has the token in another place, too
			}
			if err != nil {
				t.Fatalf("scrubbing what was added: %v", err)
			}
			if n == 0 || bytes.Contains(scrubbed, []byte(token)) {
				t.Fatalf("the token is still in %s", scrubbed)
			}
		}
	})
}

func FuzzScrub(f *testing.F) {
	f.Add([]byte(`{"ignition":{"config":{"merge":[{"httpHeaders":[{"name":"Authorization","value":"x"}]}]}}}`))
	f.Add([]byte(`{"ignition":{"config":{"replace":{"httpHeaders":[1,"a",null,{}]},"merge":{}}}}`))
	f.Add([]byte(config("3.4.0", merge(dataURL(config("3.1.0", `"merge":[{"source":"`+mcs+`",`+header+`}]`))))))
	f.Add([]byte(config("3.4.0", merge("data:,"+token))))
	f.Fuzz(func(t *testing.T, raw []byte) {
		out, _, err := pointer.Scrub(raw, secret.New([]byte(token)))
		if err != nil {
			return
		}
		if !json.Valid(out) {
			t.Fatalf("no longer JSON: %s", out)
		}
		if _, n, err := pointer.Scrub(out); err != nil || n != 0 {
			t.Fatalf("scrubbing again: %d, %v", n, err)
		}
		if bytes.Contains(out, []byte(token)) {
			t.Fatalf("the token is still in %s", out)
		}
	})
}

// User data of a few kilobytes can have many nested configs that unpack to much more. They are not read.
func TestParse_NestedConfigsUnpackToALimit(t *testing.T) {
	packed := func(config string) string {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		_, _ = io.WriteString(w, config)
		_ = w.Close()
		return `{"source":"data:text/x%d;base64,` + base64.StdEncoding.EncodeToString(b.Bytes()) + `","compression":"gzip"}`
	}
	inner := func(size int) string {
		return packed(`{"ignition":{"version":"3.4.0","config":{` + merge(mcs) + `}}` + strings.Repeat(" ", size) + `}`)
	}
	for _, c := range []struct{ configs, size, want int }{
		{1, 3 << 20, 1}, {20, 100 << 10, 20}, {20, 1 << 20, 4}, {1, 5 << 20, 0},
	} {
		sources, one := "", inner(c.size)
		for i := range c.configs {
			sources += fmt.Sprintf(one+",", i)
		}
		config, err := pointer.Parse([]byte(`{"ignition":{"version":"3.4.0","config":{"merge":[` +
			strings.TrimSuffix(sources, ",") + `]}}}`))
		if err != nil {
			t.Fatal(err)
		}
		if n := len(config.Sources()); n != c.want {
			t.Errorf("%d configs of %d bytes: %d were read, want %d", c.configs, c.size, n, c.want)
		}
	}
}
