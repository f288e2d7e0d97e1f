// SPDX-License-Identifier: Apache-2.0

package pointer_test

import (
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/pki"
	"github.com/mcs-attest/mcs-attest/pkg/pointer"
)

func ca(t *testing.T, name string) string {
	t.Helper()
	pair, err := pki.NewCA(name, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return string(pair.Certificate)
}

func withAuthority(inner string, authorities ...string) string {
	return fmt.Sprintf(`{"ignition":{"version":"3.4.0","config":{%s},"security":{"tls":{"certificateAuthorities":[%s]}}}}`,
		inner, strings.Join(authorities, ","))
}

func TestCertificateAuthorities(t *testing.T) {
	a, b := ca(t, "a"), ca(t, "b")
	sum := sha512.Sum512([]byte(a))
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	if _, err := w.Write([]byte(a)); err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, raw, want string
		err             string
	}{
		{"none", withAuthority(merge(mcs)), "", ""},
		{"one", withAuthority(merge(mcs), `{"source":"`+dataURL(a)+`"}`), "a", ""},
		{"a bundle", withAuthority(merge(mcs), `{"source":"`+dataURL(a+b)+`"}`), "a b", ""},
		{"two", withAuthority(merge(mcs), `{"source":"`+dataURL(b)+`"}`, `{"source":"`+dataURL(a)+`"}`), "b a", ""},
		{"with its hash", withAuthority(merge(mcs), `{"source":"`+dataURL(a)+`","verification":{"hash":"sha512-`+
			hex.EncodeToString(sum[:])+`"}}`), "a", ""},
		{"compressed", withAuthority(merge(mcs), `{"source":"`+dataURL(zipped.String())+`","compression":"gzip"}`), "a", ""},
		{"of a config inside", withAuthority(merge(dataURL(withAuthority(merge(mcs), `{"source":"`+dataURL(b)+`"}`))),
			`{"source":"`+dataURL(a)+`"}`), "a b", ""},
		{"with another's hash", withAuthority(merge(mcs), `{"source":"`+dataURL(b)+`","verification":{"hash":"sha512-`+
			hex.EncodeToString(sum[:])+`"}}`), "", "hash does not match"},
		{"behind a URL", withAuthority(merge(mcs), `{"source":"https://example.com/ca"}`), "", "not a data URL"},
		{"not a certificate", withAuthority(merge(mcs), `{"source":"data:,hello"}`), "", "no certificate"},
		{"not gzip", withAuthority(merge(mcs), `{"source":"data:,hello","compression":"gzip"}`), "", "gzip"},
	} {
		t.Run(c.name, func(t *testing.T) {
			config, err := pointer.Parse([]byte(c.raw))
			if err != nil {
				t.Fatal(err)
			}
			got, err := config.CertificateAuthorities()
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("error %v, want %q", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, g := range got {
				names = append(names, g.Subject.CommonName)
			}
			if strings.Join(names, " ") != c.want {
				t.Errorf("have %v, want %s", names, c.want)
			}
		})
	}
}
