package convert_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/coreos/ignition/v2/config/v3_5/types"

	"github.com/mcs-attest/mcs-attest/pkg/specversion/convert"
)

// asWhole compares a conversion with one that leaves the contents in their places: the
// bytes, and the refusals.
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
		"a scheme nobody knows":      "gopher://" + strings.Repeat("a", 100),
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
