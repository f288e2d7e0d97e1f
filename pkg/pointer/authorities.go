package pointer

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	"github.com/vincent-petithory/dataurl"
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
// data is something else, or names no authority, more than one, or one behind a
// URL, which somebody else keeps. The user data is untrusted; the bundle is not.
func SetAuthorities(userData, bundlePEM []byte) ([]byte, error) {
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
		url, isText = source.value.str()
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
	edits := []edit{{source.value.start, source.value.end, []byte(quote(authorityURL(bundlePEM)))}}
	for _, name := range []string{"compression", "verification"} {
		m, ok, err := entry.get(name)
		if err != nil {
			return nil, leftAlone("its certificate authority: %v", err)
		}
		if ok && !m.value.isNull() {
			edits = append(edits, edit{m.value.start, m.value.end, []byte("null")})
		}
	}
	out := apply(doc.text, edits)
	// What was written must be read as it was meant, by Ignition too where this
	// version of it knows the specification and took the config before.
	_, again, err := authorityEntry(out)
	if err == nil {
		source, _, err = again.get("source")
	}
	if written, _ := source.value.strOrEmpty(); err != nil || written != authorityURL(bundlePEM) {
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
	if len(bytes.TrimSpace(userData)) == 0 {
		return doc, entry, ErrEmpty
	}
	if len(userData) > MaxSize {
		return doc, entry, fmt.Errorf("it has %d bytes; at most %d are read", len(userData), MaxSize)
	}
	doc, ok := document(userData)
	if !ok || userData[doc.start] != '{' {
		return doc, entry, ErrNotIgnition
	}
	ignition, ok, err := doc.find("ignition")
	if err != nil {
		return doc, entry, err
	}
	if !ok {
		return doc, entry, ErrNotIgnition
	}
	stated, ok, err := ignition.find("version")
	if err != nil {
		return doc, entry, err
	}
	version, _ := stated.strOrEmpty()
	if !ok || !strings.HasPrefix(version, "2.") && !strings.HasPrefix(version, "3.") {
		return doc, entry, errors.New("the Ignition specification is none of 2.x and 3.x")
	}
	list, ok, err := ignition.find("security", "tls", "certificateAuthorities")
	if err != nil {
		return doc, entry, err
	}
	if !ok {
		return doc, entry, errors.New("it names no certificate authority")
	}
	switch entries := list.elements(); len(entries) {
	case 0:
		return doc, entry, errors.New("it names no certificate authority")
	case 1:
		return doc, entries[0], nil
	default:
		return doc, entry, fmt.Errorf("it names %d certificate authorities: which of them is the Machine Config Server's is not ours to say", len(entries))
	}
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
