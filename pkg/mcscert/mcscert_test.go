// SPDX-License-Identifier: Apache-2.0

package mcscert

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string, now time.Time) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotBefore: now, NotAfter: now.Add(Validity), IsCA: true,
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return authority{cert, key}
}

func (a authority) serve(t *testing.T, now time.Time, hosts ...string) *x509.Certificate {
	t.Helper()
	leaf, _, err := NewServing(a.cert, a.key, hosts, now)
	if err != nil {
		t.Fatal(err)
	}
	return leaf
}

func TestServing_Due(t *testing.T) {
	const host = "api-int.example.com"
	old := newAuthority(t, "old", start)
	leaf := old.serve(t, start, host)
	afterRenewal := start.Add(Refresh + time.Hour)
	newer := newAuthority(t, "newer", afterRenewal)
	both := []*x509.Certificate{old.cert, newer.cert}
	mature := afterRenewal.Add(Refresh / 10)
	lastMonth := leaf.NotAfter.Add(-LastMonth + time.Hour)
	young := newAuthority(t, "young", lastMonth.Add(-Publish))
	for name, c := range map[string]struct {
		s    Serving
		want string
	}{
		"valid":   {Serving{Now: start, Signer: old.cert}, ""},
		"none":    {Serving{Now: start, Signer: old.cert, Leaf: &x509.Certificate{}}, "it does not exist"},
		"expired": {Serving{Now: leaf.NotAfter, Signer: old.cert}, "it has expired"},
		"unknown CA": {Serving{Now: start, Signer: newer.cert, Bundle: []*x509.Certificate{newer.cert}},
			"no CA of the bundle"},
		"forced":         {Serving{Now: start, Signer: newer.cert, Force: true}, "an administrator requested it"},
		"same CA":        {Serving{Now: afterRenewal, Signer: old.cert}, "past its renewal"},
		"another host":   {Serving{Now: start, Signer: old.cert, Hosts: []string{"192.0.2.1"}}, "not valid for 192.0.2.1"},
		"new CA, young":  {Serving{Now: mature.Add(-2 * time.Hour), Signer: newer.cert}, ""},
		"new CA, mature": {Serving{Now: mature, Signer: newer.cert}, "past its renewal"},
		"not all known":  {Serving{Now: mature, Signer: newer.cert, Incomplete: true}, ""},
		"one failed":     {Serving{Now: lastMonth, Signer: newer.cert, PointerConfigs: []PointerConfig{{Failed: true}}}, ""},
		"one lacks":      {Serving{Now: mature, Signer: newer.cert, PointerConfigs: []PointerConfig{{Lacks: true}}}, ""},
		"one lacks, late": {Serving{Now: lastMonth, Signer: newer.cert, PointerConfigs: []PointerConfig{{Lacks: true}}},
			"past"},
		"new CA, last month": {Serving{Now: lastMonth, Signer: young.cert}, "past its renewal"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.s.Leaf == nil {
				c.s.Leaf = leaf
			} else {
				c.s.Leaf = nil
			}
			if c.s.Hosts == nil {
				c.s.Hosts = []string{host}
			}
			if c.s.Bundle == nil {
				c.s.Bundle = both
			}
			if got := c.s.Due(); !strings.Contains(got, c.want) || (c.want == "") != (got == "") {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func TestKeyTypes(t *testing.T) {
	for _, want := range KeyTypes {
		key, err := want.New()
		if err != nil {
			t.Fatal(err)
		}
		if got := KeyTypeOf(key.Public()); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if key, err := KeyType("RSA-1024").New(); err == nil {
		t.Errorf("a key of %s", KeyTypeOf(key.Public()))
	}
	if got := KeyTypeOf(ed25519.PublicKey{}); slices.Contains(KeyTypes, got) {
		t.Errorf("Ed25519 is %s", got)
	}
}

func TestCase(t *testing.T) {
	for name, c := range map[string]struct{ got, want Case }{
		"our mark":             {MadeBy(OwningComponent, []string{"machine-config-controller"}), CaseOurs},
		"the operator's mark":  {MadeBy("Machine Config Operator", nil), CaseOperator},
		"the operator's write": {MadeBy("", []string{"kubectl", "machine-config-operator"}), CaseOperator},
		"no mark":              {MadeBy("", []string{"kubectl"}), CaseOther},
		"no MachineSets":       {WithoutCA(false, 0), CaseNoMachineSets},
		"MachineSets":          {WithoutCA(true, OperatorDelay-1), CaseOperatorToCome},
		"an old operator":      {WithoutCA(true, OperatorDelay), CaseOldOperator},
	} {
		if c.got != c.want {
			t.Errorf("%s: %s, want %s", name, c.got, c.want)
		}
		if c.got.String() == string(c.got) {
			t.Errorf("%s has no text", c.got)
		}
	}
}

func TestStatus_Next(t *testing.T) {
	old, newer := newAuthority(t, "old", start), newAuthority(t, "newer", start.Add(time.Hour))
	leaf := old.serve(t, start, "a.example")
	ripe := newer.cert.NotBefore.Add(Publish)
	begun := Status{CA: newer.cert, Leaf: leaf}
	for name, c := range map[string]struct {
		s     Status
		now   time.Time
		force Force
		want  Step
		early string
	}{
		"nothing":                  {Status{}, start, Force{}, StepCA, ""},
		"at rest":                  {Status{CA: old.cert, Leaf: leaf}, start, Force{}, StepCA, ""},
		"begun":                    {begun, ripe.Add(-time.Hour), Force{}, "", "the new CA is 24h0m0s old"},
		"begun, now":               {begun, start, Force{Serving: true}, StepServing, ""},
		"begun, its key is stolen": {begun, ripe, Force{CA: true}, StepCA, ""},
		"a day later":              {begun, ripe, Force{}, StepServing, ""},
		"failed": {Status{CA: newer.cert, Leaf: leaf,
			PointerConfigs: []PointerConfig{{Name: "a/b", Failed: true}, {Name: "c", Lacks: true}}},
			ripe, Force{}, "", "do not have the new CA: a/b"},
		"lacking": {Status{CA: newer.cert, Leaf: leaf, PointerConfigs: []PointerConfig{{Name: "a/b", Lacks: true}}},
			ripe, Force{}, "", "add the bundle to them: a/b"},
	} {
		step, err := c.s.Next(c.now, c.force)
		var early *TooEarly
		if step != c.want || errors.As(err, &early) != (c.early != "") || err != nil &&
			!strings.Contains(err.Error(), c.early) {
			t.Errorf("%s: %q, %v", name, step, err)
		}
	}
}
