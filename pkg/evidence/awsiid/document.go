// SPDX-License-Identifier: Apache-2.0

package awsiid

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/mcs-attest/mcs-attest/pkg/jsonspan"
)

// Limits of a document's content.
const (
	maxContent = 16 << 10
	maxKeys    = 64
)

// document is a verified content. Keys that are not listed here are ignored, because AWS may add
// keys.
type document struct {
	account, region, zone, instance string
	pending                         time.Time
	instanceType, image, address    string // for the administrator
}

// field is one known key. The first five are required.
type field struct {
	key      string
	required bool
}

var fields = [...]field{
	{"accountId", true}, {"region", true}, {"availabilityZone", true}, {"instanceId", true}, {"pendingTime", true},
	{"instanceType", false}, {"imageId", false}, {"privateIp", false},
}

// parseDocument parses a content: one JSON object, in which no key occurs twice or in two
// spellings, without trailing bytes.
func parseDocument(content []byte) (*document, error) {
	if len(content) > maxContent {
		return nil, fmt.Errorf("a content of %d bytes; at most %d", len(content), maxContent)
	}
	object, ok := jsonspan.Parse(content)
	if !ok || !utf8.Valid(content) {
		return nil, errors.New("not JSON")
	}
	if !object.Is('{') {
		return nil, errors.New("not a JSON object")
	}
	seen := make([]string, 0, maxKeys)
	var values [len(fields)]string
	for name, value := range object.Members() {
		key, ok := plain(name)
		switch {
		case !ok:
			return nil, fmt.Errorf("key %.40q, which is not plain ASCII", name.Raw())
		case len(seen) == maxKeys:
			return nil, fmt.Errorf("more than %d keys", maxKeys)
		case slices.ContainsFunc(seen, func(other string) bool { return strings.EqualFold(key, other) }):
			return nil, fmt.Errorf("key %.40q twice", key)
		}
		seen = append(seen, key)
		at := slices.IndexFunc(fields[:], func(f field) bool { return strings.EqualFold(key, f.key) })
		if at < 0 {
			continue
		}
		if key != fields[at].key {
			return nil, fmt.Errorf("key %.40q, which is %s in another spelling", key, fields[at].key)
		}
		if values[at], ok = plain(value); !ok && (fields[at].required || !value.None()) {
			return nil, fmt.Errorf("%s is not a plain string", key)
		}
	}
	return check(values)
}

// plain returns the content of a JSON string of printable ASCII without escapes. No other string is
// accepted, so each value has one spelling.
func plain(value jsonspan.Value) (string, bool) {
	if !value.Is('"') {
		return "", false
	}
	raw := value.Raw()
	text := raw[1 : len(raw)-1]
	for _, c := range text {
		if c < ' ' || c > '~' || c == '\\' {
			return "", false
		}
	}
	return string(text), true
}

func check(values [len(fields)]string) (*document, error) {
	for i, f := range fields {
		if f.required && values[i] == "" {
			return nil, fmt.Errorf("no %s", f.key)
		}
	}
	d := document{
		account: values[0], region: values[1], zone: values[2], instance: values[3],
		instanceType: values[5], image: values[6], address: values[7],
	}
	pending, err := time.Parse(time.RFC3339, values[4])
	d.pending = pending
	switch {
	case err != nil:
		return nil, fmt.Errorf("pendingTime %.40q is not a time", values[4])
	case !isAccount(d.account):
		return nil, fmt.Errorf("accountId %.40q is not 12 digits", d.account)
	case !isRegion(d.region):
		return nil, fmt.Errorf("region %.40q is not a region", d.region)
	case !isZone(d.zone, d.region):
		return nil, fmt.Errorf("availabilityZone %.40q is not in region %s", d.zone, d.region)
	case !isInstance(d.instance):
		return nil, fmt.Errorf("instanceId %.40q is not an instance id", d.instance)
	}
	return &d, nil
}

var (
	isAccount = regexp.MustCompile(`^[0-9]{12}$`).MatchString
	// "i-" and 17 hexadecimal digits, or 8 as before 2016.
	isInstance = regexp.MustCompile(`^i-([0-9a-f]{8}|[0-9a-f]{17})$`).MatchString
	regionName = regexp.MustCompile(`^[a-z]+(-[a-z]+)+-[0-9]+$`)
	zoneSuffix = regexp.MustCompile(`^[a-z-][a-z0-9-]*$`)
)

// isRegion reports whether name looks like eu-central-1, us-gov-west-1 or eusc-de-east-1.
func isRegion(name string) bool { return len(name) <= 32 && regionName.MatchString(name) }

// isZone reports whether zone belongs to region: eu-central-1a, or a local zone such as
// us-west-2-lax-1a.
func isZone(zone, region string) bool {
	suffix, ok := strings.CutPrefix(zone, region)
	return ok && len(zone) <= 64 && zoneSuffix.MatchString(suffix)
}
