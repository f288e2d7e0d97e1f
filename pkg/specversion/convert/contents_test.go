// SPDX-License-Identifier: Apache-2.0

package convert_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/coreos/ignition/v2/config/v3_5/types"

	"github.com/mcs-attest/mcs-attest/pkg/specversion/convert"
)

// asWhole compares a conversion, its bytes or its error, with one that does not replace the
// contents.
func asWhole(t *testing.T, config types.Config) {
	t.Helper()
	before, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range all {
		got, err := convert.From35(config, v)
		want, wrong := convert.Whole(config, v)
		switch {
		case (err == nil) != (wrong == nil):
			t.Errorf("%s: %v, with the contents in place %v", v, err, wrong)
		case err != nil && err.Error() != wrong.Error():
			t.Errorf("%s: %v, with the contents in place %v", v, err, wrong)
		case err == nil && !bytes.Equal(got, want):
			t.Errorf("%s: got\n%s\nwant\n%s", v, got, want)
		}
	}
	if after, err := json.Marshal(config); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the conversion changed its argument: %v", err)
	}
}

func TestFrom35_ContentsComeBackInTheirPlaces(t *testing.T) {
	long := strings.Repeat("<a&b>", 50)
	for name, source := range map[string]string{
		"long":                       "data:," + long,
		"base64":                     "data:;base64," + strings.Repeat("QUJD", 100),
		"not base64":                 "data:;base64," + strings.Repeat("!", 100),
		"a bad escape":               "data:,%zz" + long,
		"no data URL":                "data:" + long,
		"not ASCII":                  "data:,é" + long,
		"no UTF-8":                   "data:,\xff" + long,
		"a control character":        "data:,\n" + long,
		"quotes":                     `data:,"source":"data:,contents-0"` + long,
		"as a placeholder":           "data:,contents-0",
		"as another placeholder":     "data:,contents-1",
		"as one that does not exist": "data:,contents-99",
		"nearly a placeholder":       "data:,contents-",
		"as a placeholder, signed":   "data:,contents-+1",
		"a remote file":              "https://data.example/" + strings.Repeat("a", 100),
		"an unknown scheme":          "gopher://" + strings.Repeat("a", 100),
	} {
		t.Run(name, func(t *testing.T) {
			config := parse(t, node)
			other := "data:,other" + long
			config.Storage.Files[0].Contents.Source = &other
			config.Storage.Files[1].Contents.Source = &source
			config.Storage.Files[4].Append[0].Source = &source
			config.Storage.Files[4].Append[1].Source = &other
			config.Ignition.Security.TLS.CertificateAuthorities[0].Source = &source
			unit := `a unit with "source":"data:,contents-0" in it`
			config.Systemd.Units[0].Dropins[0].Contents = &unit
			asWhole(t, config)
		})
	}
}

// parsedAsWhole compares parsing with parsing without replaced contents.
func parsedAsWhole(t *testing.T, raw []byte) {
	t.Helper()
	got, err := convert.Parse(raw)
	want, wrong := convert.ParseWhole(raw)
	if (err == nil) != (wrong == nil) || err != nil && err.Error() != wrong.Error() {
		t.Errorf("%v, with the contents in place %v\n%.2000s", err, wrong, raw)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v\nwant\n%+v", got, want)
	}
}

var withContents = func() []string {
	long := `"data:,` + strings.Repeat("a%20b", 20) + `"`
	files := func(version, files string) string {
		return `{"ignition":{"version":"` + version + `"},"storage":{"files":[` + files + `]}}`
	}
	one := `{"path":"/a","contents":{"source":` + long + `}}`
	return []string{
		files("3.5.0", one), files("3.1.0", one), files("3.9.0", one), files("2.2.0", one), files("3.5.0", one+","+one),
		files("3.5.0", `{"path":"/a","append":[{"source":`+long+`},{"source":`+long+`}]}`),
		files("3.5.0", `{"path":"/a","source":`+long+`}`), // a member that no version has
		files("3.5.0", `{"path":"/a","contents":{"source":`+long+`,"source":"data:,b"}}`),
		files("3.5.0", `{"path":"/a","contents":{"SOURCE":`+long+`}}`),
		files("3.5.0", `{"path":"a","contents":{"source":`+long+`}}`),
		files("3.5.0", `{"path":"/a","contents":{"source":`+strings.Replace(long, "%20", "%2x", 1)+`}}`),
		files("3.5.0", `{"path":"/a","contents":{"source":"data:,contents-0"}},`+one),
		`{"ignition":{"version":"3.5.0","security":{"tls":{"certificateAuthorities":[{"source":` + long + `},{"source":` + long + `}]}}}}`,
		`{"ignition":{"version":"3.5.0","config":{"merge":[{"source":` + long + `}],"replace":{"source":` + long + `}}}}`,
		`{"ignition":{"version":"3.4.0"},"storage":{"luks":[{"name":"d","device":"/dev/x","keyFile":{"source":` + long + `}}]}}`,
	}
}()

func TestParse_ReadsAsWithContentsInPlace(t *testing.T) {
	for _, raw := range append(withContents, node) {
		parsedAsWhole(t, []byte(raw))
	}
}

func FuzzParse(f *testing.F) {
	for _, raw := range append(withContents, node) {
		f.Add([]byte(raw))
	}
	f.Fuzz(parsedAsWhole)
}
