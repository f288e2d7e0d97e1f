// SPDX-License-Identifier: Apache-2.0

package pointer

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/vincent-petithory/dataurl"

	"github.com/mcs-attest/mcs-attest/pkg/jsonspan"
)

// SetAuthorities returns the user data with the bundle as the one certificate authority of
// ignition.security.tls. It updates the pointer configs of a cluster's machines when the authority
// of the Machine Config Server is renewed. It supports specifications 2.x and 3.x:
//
//   - The entry's source becomes the bundle as one data URL, in the form that the
//     machine-config-operator and the installer write.
//   - A compression or verification hash of the old source no longer fits and becomes null.
//   - Everything else, including unknown keys and a token, stays byte for byte.
//
// An entry that already has the bundle, in any encoding, does not change, so the operation is
// idempotent.
//
// If it changes nothing, the error is an [*Unchanged] with the reason: the user data is not an
// Ignition config; it names no authority, several, or one behind a URL, which another program
// maintains; or its authority may belong to another server. The entry must share a certificate with
// the bundle or with earlier, which has authorities in PEM that the bundle replaces, such as the
// installer's. The user data is untrusted; the bundle is trusted.
func SetAuthorities(userData, bundlePEM []byte, earlier ...[]byte) ([]byte, error) {
	known := parseAuthorities(slices.Concat(bundlePEM, []byte("\n"), bytes.Join(earlier, []byte("\n"))))
	return setAuthorities(userData, bundlePEM, func(entry value, url string) error {
		old, err := entry.authorities(url)
		if err != nil {
			return unchanged("its certificate authority cannot be read, so its owner is unknown: %v", err)
		}
		if !slices.ContainsFunc(old, func(c *x509.Certificate) bool { return slices.ContainsFunc(known, c.Equal) }) {
			return unchanged("its certificate authority (%.64s) is not in the bundle, so it may be another server's",
				old[0].Subject.CommonName)
		}
		return nil
	})
}

// ForceAuthorities is like [SetAuthorities], but replaces any single authority. It is for an
// administrator who has checked the config.
func ForceAuthorities(userData, bundlePEM []byte) ([]byte, error) {
	return setAuthorities(userData, bundlePEM, func(value, string) error { return nil })
}

// Authorities returns the certificates by which a machine with this user data trusts servers, for
// specifications 2.x and 3.x. It returns none if the user data names none. An error that matches
// [ErrEmpty] or [ErrNotIgnition] means that it is not an Ignition config. Any other error means
// that the certificates cannot be read, for example behind a URL. The user data is untrusted.
func Authorities(userData []byte) (all []*x509.Certificate, err error) {
	if c, err := Parse(userData); err == nil {
		return c.CertificateAuthorities()
	}
	_, list, err := authorityList(userData)
	if err != nil {
		return nil, err
	}
	for i, entry := range list {
		url, err := entry.text("source")
		if err != nil {
			return nil, err
		}
		some, err := entry.authorities(url)
		if err != nil {
			return nil, fmt.Errorf("certificate authority %d: %w", i, err)
		}
		all = append(all, some...)
	}
	return all, nil
}

// authorities returns the certificates of one entry; at least one.
func (v value) authorities(url string) ([]*x509.Certificate, error) {
	if !strings.HasPrefix(strings.ToLower(url), "data:") {
		return nil, errors.New("its source is not a data URL")
	}
	compression, err := v.text("compression")
	if err != nil {
		return nil, err
	}
	raw, err := decodeData(url, compression)
	if err != nil {
		return nil, err
	}
	all := parseAuthorities(raw)
	if len(all) == 0 {
		return nil, errors.New("it contains no certificate in PEM")
	}
	return all, nil
}

// parseAuthorities returns the certificates in PEM that can be parsed.
func parseAuthorities(raw []byte) (all []*x509.Certificate) {
	for block, rest := pem.Decode(raw); block != nil; block, rest = pem.Decode(rest) {
		if c, err := x509.ParseCertificate(block.Bytes); err == nil && block.Type == "CERTIFICATE" {
			all = append(all, c)
		}
	}
	return all
}

func setAuthorities(userData, bundlePEM []byte, replaceable func(entry value, url string) error) ([]byte, error) {
	if err := checkBundle(bundlePEM); err != nil {
		return nil, err
	}
	doc, entry, err := authorityEntry(userData)
	if err != nil {
		return nil, unchanged("%v", err)
	}
	source, ok, err := entry.get("source")
	if err != nil {
		return nil, unchanged("its certificate authority: %v", err)
	}
	url, isText := "", false
	if ok {
		url, isText = source.Str()
	}
	if !isText {
		return nil, unchanged("its certificate authority has no source")
	}
	if !strings.HasPrefix(strings.ToLower(url), "data:") {
		return nil, unchanged("its certificate authority is behind a URL")
	}
	if old, ok := entry.plainData(url); ok && bytes.Equal(old, bundlePEM) {
		return userData, nil
	}
	if err := replaceable(entry, url); err != nil {
		return nil, err
	}
	edits := []edit{source.with(quote(authorityURL(bundlePEM)))}
	for _, name := range []string{"compression", "verification"} {
		m, ok, err := entry.get(name)
		if err != nil {
			return nil, unchanged("its certificate authority: %v", err)
		}
		if ok && !m.None() {
			edits = append(edits, m.with("null"))
		}
	}
	out := jsonspan.Apply(doc.Text, edits)
	// Ignition must read the result as intended, if this version of it supports the specification
	// and accepted the config before.
	_, again, err := authorityEntry(out)
	if err == nil {
		source, _, err = again.get("source")
	}
	if written := source.strOrEmpty(); err != nil || written != authorityURL(bundlePEM) {
		return nil, errors.New("the changed pointer config does not parse as it was written")
	}
	if _, err := Parse(userData); err == nil {
		if _, err := Parse(out); err != nil {
			return nil, fmt.Errorf("the changed pointer config: %w", err)
		}
	}
	return out, nil
}

// authorityURL returns the bundle as "data:text/plain;charset=utf-8;base64,...".
func authorityURL(bundlePEM []byte) string {
	return dataurl.New(bundlePEM, "text/plain", "charset", "utf-8").String()
}

// plainData returns the content of a data URL that is neither compressed nor verified.
func (v value) plainData(url string) ([]byte, bool) {
	for _, name := range []string{"compression", "verification"} {
		if _, ok, err := v.find(name); ok || err != nil {
			return nil, false
		}
	}
	data, err := decodeData(url, "")
	return data, err == nil
}

// authorityEntry returns the only entry of ignition.security.tls.certificateAuthorities.
func authorityEntry(userData []byte) (doc, entry value, err error) {
	doc, list, err := authorityList(userData)
	if err != nil {
		return doc, entry, err
	}
	switch len(list) {
	case 0:
		return doc, entry, errors.New("it names no certificate authority")
	case 1:
		return doc, list[0], nil
	default:
		return doc, entry,
			fmt.Errorf("it names %d certificate authorities, and the Machine Config Server's cannot be determined",
				len(list))
	}
}

// authorityList returns the entries of ignition.security.tls.certificateAuthorities.
func authorityList(userData []byte) (doc value, list []value, err error) {
	if len(bytes.TrimSpace(userData)) == 0 {
		return doc, nil, ErrEmpty
	}
	if len(userData) > MaxSize {
		return doc, nil, fmt.Errorf("it has %d bytes; at most %d are read", len(userData), MaxSize)
	}
	doc, ok := document(userData)
	if !ok || !doc.Is('{') {
		return doc, nil, ErrNotIgnition
	}
	ignition, ok, err := doc.find("ignition")
	if err != nil {
		return doc, nil, err
	}
	if !ok {
		return doc, nil, ErrNotIgnition
	}
	version, err := ignition.text("version")
	if err != nil {
		return doc, nil, err
	}
	if !strings.HasPrefix(version, "2.") && !strings.HasPrefix(version, "3.") {
		return doc, nil, errors.New("the Ignition specification is neither 2.x nor 3.x")
	}
	entries, ok, err := ignition.find("security", "tls", "certificateAuthorities")
	if err != nil || !ok {
		return doc, nil, err
	}
	return doc, entries.elements(), nil
}

// checkBundle rejects everything except certificates of authorities.
func checkBundle(bundlePEM []byte) error {
	for block, rest := pem.Decode(bundlePEM); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			return fmt.Errorf("the bundle contains a %.32q: only certificates are allowed in a pointer config", block.Type)
		}
	}
	all, err := ParseCertificates(bundlePEM)
	switch {
	case err != nil:
		return fmt.Errorf("the bundle: %w", err)
	case len(all) == 0:
		return errors.New("the bundle contains no certificate")
	}
	return nil
}
