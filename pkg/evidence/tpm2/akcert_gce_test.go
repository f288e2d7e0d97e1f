// SPDX-License-Identifier: Apache-2.0

package tpm2_test

import (
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"slices"
	"strings"
	"testing"

	"golang.org/x/crypto/cryptobyte"
	der "golang.org/x/crypto/cryptobyte/asn1"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// gceName is the content of the extension, whose fields a test can change.
type gceName struct {
	zone, project, name string
	number, id          int64
	properties          func(*cryptobyte.Builder) // nil: no properties
	after               []byte
}

func explicit(n uint8) der.Tag { return der.Tag(n).Constructed().ContextSpecific() }

// properties is the sequence in Google's certificates, with the given isProduction.
func properties(production bool) func(*cryptobyte.Builder) {
	return func(b *cryptobyte.Builder) {
		b.AddASN1(der.SEQUENCE, func(b *cryptobyte.Builder) {
			b.AddASN1(explicit(0), func(b *cryptobyte.Builder) { b.AddASN1Int64(0) })
			for i, v := range []bool{production, true, false, false, false} {
				b.AddASN1(explicit(uint8(i+1)), func(b *cryptobyte.Builder) { b.AddASN1Boolean(v) })
			}
		})
	}
}

func (g gceName) encode(t testing.TB) []byte {
	t.Helper()
	text := func(b *cryptobyte.Builder, s string) {
		b.AddASN1(der.UTF8String, func(b *cryptobyte.Builder) { b.AddBytes([]byte(s)) })
	}
	var b cryptobyte.Builder
	b.AddASN1(der.SEQUENCE, func(b *cryptobyte.Builder) {
		text(b, g.zone)
		b.AddASN1Int64(g.number)
		text(b, g.project)
		b.AddASN1Int64(g.id)
		text(b, g.name)
		if g.properties != nil {
			b.AddASN1(explicit(0), g.properties)
		}
		b.AddBytes(g.after)
	})
	raw, err := b.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func gceExtension(t testing.TB, change func(*gceName)) pkix.Extension {
	t.Helper()
	g := gceName{zone: "europe-west3-b", project: "project-1", name: "worker-0", number: 995081019036,
		id: 6524697943022743941, properties: properties(true)}
	if change != nil {
		change(&g)
	}
	return pkix.Extension{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 11129, 2, 1, 21}, Value: g.encode(t)}
}

func TestGCEInstanceExtension(t *testing.T) {
	p := newPlatform(t)
	field := func(n uint8, add func(*cryptobyte.Builder)) func(*cryptobyte.Builder) {
		return func(b *cryptobyte.Builder) { b.AddASN1(explicit(n), add) }
	}
	boolean := func(v bool) func(*cryptobyte.Builder) { return func(b *cryptobyte.Builder) { b.AddASN1Boolean(v) } }
	list := func(fields ...func(*cryptobyte.Builder)) func(*cryptobyte.Builder) {
		return func(b *cryptobyte.Builder) {
			b.AddASN1(der.SEQUENCE, func(b *cryptobyte.Builder) {
				for _, f := range fields {
					f(b)
				}
			})
		}
	}
	production := field(1, boolean(true))
	for _, c := range []struct {
		name   string
		change func(*gceName)
		want   reason.Code // 0: accepted
	}{
		{"as Google writes it", nil, 0},
		{"a project of a domain", func(g *gceName) { g.project = "example.com:project-1" }, 0},
		{"only isProduction", func(g *gceName) { g.properties = list(production) }, 0},
		{"an unknown property", func(g *gceName) { g.properties = list(production, field(9, boolean(true))) },
			0},
		{"the last property", func(g *gceName) { g.properties = list(production, field(30, boolean(true))) }, 0},
		{"properties without a sequence", func(g *gceName) { g.properties = func(*cryptobyte.Builder) {} },
			reason.EKCertificateInvalid},
		{"not of production", func(g *gceName) { g.properties = properties(false) }, reason.EKUntrusted},
		{"no properties", func(g *gceName) { g.properties = nil }, reason.EKUntrusted},
		{"no isProduction", func(g *gceName) { g.properties = list(field(2, boolean(true))) }, reason.EKUntrusted},
		{"isProduction twice", func(g *gceName) { g.properties = list(production, production) }, reason.EKCertificateInvalid},
		{"isProduction after a later one", func(g *gceName) { g.properties = list(field(2, boolean(true)), production) },
			reason.EKCertificateInvalid},
		{"isProduction that is a number", func(g *gceName) {
			g.properties = list(field(1, func(b *cryptobyte.Builder) { b.AddASN1Int64(1) }))
		}, reason.EKCertificateInvalid},
		{"isProduction in BER", func(g *gceName) {
			g.properties = list(field(1, func(b *cryptobyte.Builder) { b.AddBytes([]byte{1, 1, 1}) }))
		}, reason.EKCertificateInvalid},
		{"isProduction with something behind it", func(g *gceName) {
			g.properties = list(field(1, func(b *cryptobyte.Builder) { b.AddASN1Boolean(true); b.AddASN1Boolean(true) }))
		}, reason.EKCertificateInvalid},
		{"a security version below zero", func(g *gceName) {
			g.properties = list(field(0, func(b *cryptobyte.Builder) { b.AddASN1Int64(-1) }), production)
		}, reason.EKCertificateInvalid},
		{"a property without its tag", func(g *gceName) { g.properties = list(boolean(true)) }, reason.EKCertificateInvalid},
		{"a property with a private tag", func(g *gceName) {
			g.properties = list(production, func(b *cryptobyte.Builder) { b.AddASN1(0xe2, boolean(true)) })
		}, reason.EKCertificateInvalid},
		{"something after the properties", func(g *gceName) { g.after = []byte{5, 0} }, reason.EKCertificateInvalid},
		{"properties twice", func(g *gceName) {
			inner := properties(true)
			g.properties = func(b *cryptobyte.Builder) { inner(b); inner(b) }
		}, reason.EKCertificateInvalid},
		{"no zone", func(g *gceName) { g.zone = "" }, reason.EKCertificateInvalid},
		{"a zone that reaches into the name", func(g *gceName) { g.zone, g.name = "europe-west3-b/worker-0", "x" },
			reason.EKCertificateInvalid},
		{"a name that climbs", func(g *gceName) { g.name = "../worker-1" }, reason.EKCertificateInvalid},
		{"a name in capitals", func(g *gceName) { g.name = "Worker-0" }, reason.EKCertificateInvalid},
		{"a name that is not UTF-8", func(g *gceName) { g.name = "worker\xff" }, reason.EKCertificateInvalid},
		{"a name with a line break", func(g *gceName) { g.name = "worker-0\n" }, reason.EKCertificateInvalid},
		{"a name of 100 letters", func(g *gceName) { g.name = strings.Repeat("a", 100) }, 0},
		{"names with the last letter and the last digit", func(g *gceName) { g.zone, g.project, g.name = "z9", "z9", "9z" },
			0},
		{"a name of 101 letters", func(g *gceName) { g.name = strings.Repeat("a", 101) }, reason.EKCertificateInvalid},
		{"a project that begins with a dot", func(g *gceName) { g.project = ".project" }, reason.EKCertificateInvalid},
		{"instance number 0", func(g *gceName) { g.id = 0 }, reason.EKCertificateInvalid},
		{"an instance number below zero", func(g *gceName) { g.id = -1 }, reason.EKCertificateInvalid},
		{"project number 0", func(g *gceName) { g.number = 0 }, reason.EKCertificateInvalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			chain := p.issue(t, func(cert *x509.Certificate) {
				cert.ExtraExtensions = []pkix.Extension{gceExtension(t, c.change)}
			})
			_, err := p.endorse(t, chain)
			if c.want != 0 {
				denied(t, err, c.want)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
	// Each of its five parts is required, in this order and with its own type.
	encoded := func(text, number der.Tag) (parts []func(*cryptobyte.Builder)) {
		for _, s := range []string{"europe-west3-b", "\x07", "project-1", "\x07", "worker-0"} {
			tag := text
			if s == "\x07" {
				tag = number
			}
			parts = append(parts, func(b *cryptobyte.Builder) {
				b.AddASN1(tag, func(b *cryptobyte.Builder) { b.AddBytes([]byte(s)) })
			})
		}
		return parts
	}
	parts, others := encoded(der.UTF8String, der.INTEGER), encoded(der.PrintableString, der.ENUM)
	for i := range parts {
		for what, changed := range map[string][]func(*cryptobyte.Builder){
			"without":              slices.Delete(slices.Clone(parts), i, i+1),
			"with another type of": slices.Replace(slices.Clone(parts), i, i+1, others[i]),
		} {
			var b cryptobyte.Builder
			list(changed...)(&b)
			_, err := p.endorse(t, p.issue(t, func(cert *x509.Certificate) {
				cert.ExtraExtensions[0].Value = b.BytesOrPanic()
			}))
			if err == nil || !strings.Contains(err.Error(), "instance number or name is missing") {
				t.Errorf("%s part %d: %v", what, i+1, err)
			}
		}
	}
	_, err := p.endorse(t, p.issue(t, func(cert *x509.Certificate) { cert.ExtraExtensions[0].Value = []byte{5, 0} }))
	if err == nil || !strings.Contains(err.Error(), "not one sequence") {
		t.Errorf("no sequence: %v", err)
	}
	t.Run("the extension twice", func(t *testing.T) {
		template, err := x509.ParseCertificate(p.issue(t, nil)[0])
		if err != nil {
			t.Fatal(err)
		}
		template.ExtraExtensions = []pkix.Extension{gceExtension(t, nil),
			gceExtension(t, func(g *gceName) { g.name = "worker-1" })}
		leaf, err := x509.CreateCertificate(rand.Reader, template, p.intermediate.cert, &p.key.PublicKey, p.intermediate.key)
		if err != nil {
			t.Fatal(err)
		}
		_, err = p.endorse(t, [][]byte{leaf, p.intermediate.cert.Raw})
		denied(t, err, reason.EKCertificateInvalid)
	})
}
