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

// SetAuthorities returns the user data with the bundle as the one certificate
// authority of ignition.security.tls. It is for the pointer configs that a cluster
// hands to its machines when the authority of the Machine Config Server is
// renewed, and works on every specification 2.x and 3.x:
//
//   - the entry's source becomes the bundle as one data URL, in the form in which
//     the machine-config-operator and the installer write it;
//   - a compression or verification hash of the old source, which no longer fits,
//     becomes null;
//   - everything else, unknown keys and a token too, stays byte for byte.
//
// An entry that holds the bundle already, in whatever encoding, stays as it is:
// doing it again changes nothing. A [*LeftAlone] says why nothing was done: the user
// data is something else, or names no authority, more than one, one behind a URL,
// which somebody else keeps, or one of somebody else's: the entry must share a
// certificate with the bundle or with earlier, which are authorities in PEM that the
// bundle is in place of, such as the installer's. The user data is untrusted; the
// bundle is not.
func SetAuthorities(userData, bundlePEM []byte, earlier ...[]byte) ([]byte, error) {
	known := parseAuthorities(slices.Concat(bundlePEM, []byte("\n"), bytes.Join(earlier, []byte("\n"))))
	return setAuthorities(userData, bundlePEM, func(entry value, url string) error {
		old, err := entry.authorities(url)
		if err != nil {
			return leftAlone("its certificate authority cannot be read, so whose it is nobody knows: %v", err)
		}
		if !slices.ContainsFunc(old, func(c *x509.Certificate) bool { return slices.ContainsFunc(known, c.Equal) }) {
			return leftAlone("its certificate authority (%.64s) is none of the bundle's, so it may be another server's",
				old[0].Subject.CommonName)
		}
		return nil
	})
}

// ForceAuthorities is [SetAuthorities] whatever the one authority is: for somebody who
// has looked.
func ForceAuthorities(userData, bundlePEM []byte) ([]byte, error) {
	return setAuthorities(userData, bundlePEM, func(value, string) error { return nil })
}

// Authorities are the certificates that a machine with this user data knows servers
// by, in every specification 2.x and 3.x; none where it names none. An error that is
// [ErrEmpty] or [ErrNotIgnition] says that it is no Ignition config; any other, that
// they cannot be told, of one behind a URL for example. The user data is untrusted.
func Authorities(userData []byte) (all []*x509.Certificate, err error) {
	if c, err := Parse(userData); err == nil {
		return c.CertificateAuthorities()
	}
	_, list, err := authorityList(userData)
	if err != nil {
		return nil, err
	}
	for i, entry := range list {
		source, _, err := entry.find("source")
		if err != nil {
			return nil, err
		}
		url := source.strOrEmpty()
		some, err := entry.authorities(url)
		if err != nil {
			return nil, fmt.Errorf("certificate authority %d: %w", i, err)
		}
		all = append(all, some...)
	}
	return all, nil
}

// authorities are those of one entry; at least one.
func (v value) authorities(url string) ([]*x509.Certificate, error) {
	if !strings.HasPrefix(strings.ToLower(url), "data:") {
		return nil, errors.New("its source is not a data URL")
	}
	compression, _, err := v.find("compression")
	if err != nil {
		return nil, err
	}
	name := compression.strOrEmpty()
	raw, err := decodeData(url, name)
	if err != nil {
		return nil, err
	}
	all := parseAuthorities(raw)
	if len(all) == 0 {
		return nil, errors.New("it holds no certificate in PEM")
	}
	return all, nil
}

// parseAuthorities are the certificates in PEM that can be read.
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
		return nil, leftAlone("%v", err)
	}
	source, ok, err := entry.get("source")
	if err != nil {
		return nil, leftAlone("its certificate authority: %v", err)
	}
	url, isText := "", false
	if ok {
		url, isText = source.Str()
	}
	if !isText {
		return nil, leftAlone("its certificate authority has no source")
	}
	if !strings.HasPrefix(strings.ToLower(url), "data:") {
		return nil, leftAlone("its certificate authority is behind a URL")
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
			return nil, leftAlone("its certificate authority: %v", err)
		}
		if ok && !m.None() {
			edits = append(edits, m.with("null"))
		}
	}
	out := jsonspan.Apply(doc.Text, edits)
	// What was written must be read as it was meant, by Ignition too where this
	// version of it knows the specification and took the config before.
	_, again, err := authorityEntry(out)
	if err == nil {
		source, _, err = again.get("source")
	}
	if written := source.strOrEmpty(); err != nil || written != authorityURL(bundlePEM) {
		return nil, errors.New("the changed pointer config is not read as it was written")
	}
	if _, err := Parse(userData); err == nil {
		if _, err := Parse(out); err != nil {
			return nil, fmt.Errorf("the changed pointer config: %w", err)
		}
	}
	return out, nil
}

// authorityURL is the bundle as "data:text/plain;charset=utf-8;base64,...".
func authorityURL(bundlePEM []byte) string {
	return dataurl.New(bundlePEM, "text/plain", "charset", "utf-8").String()
}

// plainData is what a data URL holds that is neither compressed nor verified.
func (v value) plainData(url string) ([]byte, bool) {
	for _, name := range []string{"compression", "verification"} {
		if _, ok, err := v.find(name); ok || err != nil {
			return nil, false
		}
	}
	data, err := decodeData(url, "")
	return data, err == nil
}

// authorityEntry finds the one entry of ignition.security.tls.certificateAuthorities.
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
			fmt.Errorf("it names %d certificate authorities: which of them is the Machine Config Server's is not ours to say",
				len(list))
	}
}

// authorityList finds the entries of ignition.security.tls.certificateAuthorities.
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
	stated, ok, err := ignition.find("version")
	if err != nil {
		return doc, nil, err
	}
	version := stated.strOrEmpty()
	if !ok || !strings.HasPrefix(version, "2.") && !strings.HasPrefix(version, "3.") {
		return doc, nil, errors.New("the Ignition specification is none of 2.x and 3.x")
	}
	entries, ok, err := ignition.find("security", "tls", "certificateAuthorities")
	if err != nil || !ok {
		return doc, nil, err
	}
	return doc, entries.elements(), nil
}

// checkBundle keeps anything but certificates of authorities out of pointer configs.
func checkBundle(bundlePEM []byte) error {
	n, rest := 0, bundlePEM
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return fmt.Errorf("the bundle holds a %.32q: nothing but certificates goes into a pointer config", block.Type)
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return fmt.Errorf("certificate %d of the bundle: %w", n, err)
		}
		n++
	}
	if n == 0 {
		return errors.New("the bundle holds no certificate")
	}
	return nil
}
