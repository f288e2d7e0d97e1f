// Package specversion knows which version of the Ignition config specification
// a client asks for and which one a config is written in.
//
// Clients ask by the Accept header, as the Machine Config Server reads it:
//
//   - The header is split at commas. Each part is a media type with parameters;
//     a part without a slash is ignored, as is every parameter but version and q.
//   - Parts are taken by descending q, equal ones in the order of the header.
//   - The first part with the subtype vnd.coreos.ignition+json and a version of the
//     form MAJOR.MINOR.PATCH decides. Any main type will do. The server answers 400 if
//     it does not support that version, whatever follows.
//   - Nothing of the kind in the header (curl, a browser): spec 2.2.0.
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
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// Version is a version of the config specification. The patch level says
// nothing: every released specification has 0.
type Version struct{ Major, Minor int }

// newestMCS is the newest specification that the Machine Config Server serves.
var newestMCS = Version{3, 5}

// unversioned is what a client without an Ignition Accept header receives.
var unversioned = Version{2, 2}

// String is the form in a config: "3.4.0".
func (v Version) String() string { return fmt.Sprintf("%d.%d.0", v.Major, v.Minor) }

// Accept is the versions a client asks for, the most wanted first.
type Accept []Version

// ParseAccept reads an Accept header. It has no errors: what does not parse does not count.
// It reads the whole header: the listener bounds the size, as the Machine Config Server's does.
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
	// The server sorts all parts in this way. It matters for a q of NaN, which no order has a place for.
	sort.SliceStable(parts, func(i, j int) bool { return parts[i].q > parts[j].q })
	var a Accept
	for _, p := range parts {
		if p.ignition {
			a = append(a, p.version)
		}
	}
	return a
}

// Negotiate returns the version that the Machine Config Server serves. The first wanted
// version decides: 3.x gives 3.x, at most 3.5, and 2.x from 2.2 on gives 2.2. A client
// that asks for no version gets 2.2. The error is the server's 400.
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
		return Version{}, fmt.Errorf("no spec version %s", v)
	}
}

// Takes reports whether the client can read a config of version v: it asks for
// the same major version and for no older minor one.
func (a Accept) Takes(v Version) bool {
	if len(a) == 0 {
		a = Accept{unversioned}
	}
	return slices.ContainsFunc(a, func(w Version) bool { return w.Major == v.Major && w.Minor >= v.Minor })
}

// ErrExperimental says that a config is written in a specification that was not released.
var ErrExperimental = errors.New("an experimental spec version is read by one release of Ignition alone")

// Of returns the specification version that a rendered config names. The config
// must be one whole JSON object with nothing after it; its content is not looked at.
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
		return Version{}, errors.New("not an Ignition config: there is no ignition.version")
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

// locate adds the line to a syntax error; encoding/json counts bytes.
func locate(config []byte, err error) error {
	var syntax *json.SyntaxError
	if !errors.As(err, &syntax) {
		return err
	}
	at := min(int(syntax.Offset), len(config))
	return fmt.Errorf("line %d: %w", 1+strings.Count(string(config[:at]), "\n"), err)
}

// identifier is what may follow the numbers of a semantic version after - or +.
var identifier = regexp.MustCompile(`^[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*$`)

// parse reads MAJOR.MINOR.PATCH with an optional suffix, and reports whether there was one.
func parse(s string) (v Version, suffix bool, err error) {
	numbers, build, _ := strings.Cut(s, "+")
	numbers, release, _ := strings.Cut(numbers, "-")
	parts := strings.Split(numbers, ".")
	if len(parts) != 3 {
		return Version{}, false, fmt.Errorf("%.20q is not MAJOR.MINOR.PATCH", s)
	}
	for _, id := range []string{release, build} {
		if id != "" && !identifier.MatchString(id) {
			return Version{}, false, fmt.Errorf("%.20q is not MAJOR.MINOR.PATCH with a valid suffix", s)
		}
	}
	var n [3]int
	for i, p := range parts {
		u, err := strconv.ParseUint(p, 10, 63)
		if err != nil {
			return Version{}, false, fmt.Errorf("%.20q is not MAJOR.MINOR.PATCH", s)
		}
		n[i] = int(u)
	}
	return Version{n[0], n[1]}, len(numbers) < len(s), nil
}
