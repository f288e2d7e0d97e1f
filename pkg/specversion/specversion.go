// SPDX-License-Identifier: Apache-2.0

// Package specversion determines which versions of the Ignition config specification a
// client accepts, and in which version a config is written. The gate and the config
// sources use it.
//
// Clients send an Accept header, which is evaluated like in the Machine Config Server:
//
//   - The header is split at commas. Each part is a media type with parameters. Parts
//     without a slash and parameters other than version and q are ignored.
//   - Parts are sorted by descending q. Parts with the same q keep their order.
//   - The first part with the subtype vnd.coreos.ignition+json and a version of the form
//     MAJOR.MINOR.PATCH decides, with any main type. If the server does not support that
//     version, it answers 400, regardless of the other parts.
//   - Without such a part (curl, a browser), the client receives spec 2.2.0.
//
// Ignition 2.x sends
//
//	application/vnd.coreos.ignition+json;version=3.4.0, */*;q=0.1
//
// and the 0.x line of Ignition
//
//	application/vnd.coreos.ignition+json; version=2.4.0, application/vnd.coreos.ignition+json; version=1; q=0.5, */*;
//
// q=0.1
package specversion

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/coreos/go-semver/semver"
)

// Version is a version of the config specification. The patch level is not significant: it
// is 0 in every released specification.
type Version struct{ Major, Minor int }

// newestMCS is the newest specification that the Machine Config Server serves.
var newestMCS = Version{3, 5}

// unversioned is what a client without an Ignition Accept header receives.
var unversioned = Version{2, 2}

// String returns the form in a config: "3.4.0".
func (v Version) String() string { return fmt.Sprintf("%d.%d.0", v.Major, v.Minor) }

// Accept is the list of versions that a client accepts, in order of preference.
type Accept []Version

// ParseAccept parses an Accept header. It ignores invalid parts. It reads the whole header,
// because the listener limits the size, like the Machine Config Server's.
func ParseAccept(header string) Accept {
	type part struct {
		version  Version
		ignition bool
		q        float32
	}
	var parts []part
	for value := range strings.SplitSeq(header, ",") {
		mediaType, parameters, _ := strings.Cut(value, ";")
		_, subtype, ok := strings.Cut(strings.TrimSpace(mediaType), "/")
		if !ok {
			continue
		}
		p, haveVersion, haveQ := part{q: 1}, false, false
		for parameter := range strings.SplitSeq(parameters, ";") {
			key, text, _ := strings.Cut(strings.TrimSpace(parameter), "=")
			switch {
			case key == "version" && !haveVersion:
				v, _, err := parse(text)
				p.version, haveVersion = v, err == nil
			case key == "q" && !haveQ:
				q, err := strconv.ParseFloat(text, 32)
				if err == nil {
					p.q, haveQ = float32(q), true
				}
			}
		}
		p.ignition = haveVersion && subtype == "vnd.coreos.ignition+json"
		parts = append(parts, p)
	}
	// The server sorts in the same way. The algorithm matters for a q of NaN.
	sort.SliceStable(parts, func(i, j int) bool { return parts[i].q > parts[j].q })
	var a Accept
	for _, p := range parts {
		if p.ignition {
			a = append(a, p.version)
		}
	}
	return a
}

// Negotiate returns the version that the Machine Config Server serves. The client's first
// version decides: 3.x yields 3.x, at most 3.5, and 2.x from 2.2 on yields 2.2. A client
// without a version receives 2.2. An error means that the server answers 400.
func (a Accept) Negotiate() (Version, error) {
	if len(a) == 0 {
		return unversioned, nil
	}
	switch v := a[0]; {
	case v.Major == 3:
		return Version{3, min(v.Minor, newestMCS.Minor)}, nil
	case v.Major == 2 && v.Minor >= unversioned.Minor:
		return unversioned, nil
	default:
		return Version{}, fmt.Errorf("spec version %s is not supported", v)
	}
}

// Accepts reports whether the client accepts a config of version v: it names the same major
// version, and the same or a newer minor version.
func (a Accept) Accepts(v Version) bool {
	if len(a) == 0 {
		a = Accept{unversioned}
	}
	return slices.ContainsFunc(a, func(w Version) bool { return w.Major == v.Major && w.Minor >= v.Minor })
}

// ErrExperimental is the error of a config in a specification that was not released.
var ErrExperimental = errors.New("only one release of Ignition supports an experimental spec version")

// Of returns the specification version of a rendered config, which must be exactly one JSON
// object. It does not check the content.
func Of(config []byte) (Version, error) {
	var head struct {
		Ignition struct {
			Version string `json:"version"`
		} `json:"ignition"`
	}
	if err := json.Unmarshal(config, &head); err != nil {
		return Version{}, fmt.Errorf("not an Ignition config: %w", locate(config, err))
	}
	if head.Ignition.Version == "" {
		return Version{}, errors.New("not an Ignition config: ignition.version is missing")
	}
	v, suffix, err := parse(head.Ignition.Version)
	if err != nil {
		return Version{}, fmt.Errorf("not an Ignition config: ignition.version: %w", err)
	}
	if suffix {
		return Version{}, ErrExperimental
	}
	return v, nil
}

// locate adds the line to a syntax error, because encoding/json counts bytes.
func locate(config []byte, err error) error {
	var syntax *json.SyntaxError
	if !errors.As(err, &syntax) {
		return err
	}
	at := min(int(syntax.Offset), len(config))
	return fmt.Errorf("line %d: %w", 1+strings.Count(string(config[:at]), "\n"), err)
}

// parse parses MAJOR.MINOR.PATCH with an optional suffix, and reports whether it has one.
func parse(s string) (v Version, suffix bool, err error) {
	parsed, err := semver.NewVersion(s)
	if err != nil {
		return Version{}, false, fmt.Errorf("%.20q is not MAJOR.MINOR.PATCH", s)
	}
	return Version{int(parsed.Major), int(parsed.Minor)}, strings.ContainsAny(s, "+-"), nil
}
