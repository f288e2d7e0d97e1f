// SPDX-License-Identifier: Apache-2.0

package gcpidentity

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/jsonspan"
)

// forbidden are header members that contain or name a key, or change how the token is read (RFC
// 7515, 4.1; RFC 7797). They are rejected before any of them could have an effect.
var forbidden = []string{"jku", "jwk", "x5u", "x5c", "crit", "b64"}

var strict = base64.RawURLEncoding.Strict()

// token is a parsed token. Nothing in it is verified.
type token struct {
	kid       string
	signed    []byte // the first two parts with the dot between them, as received
	payload   []byte
	signature []byte
}

// split parses a token. Each value has only one base64 encoding, so that a token has only one form.
func split(raw []byte) (token, error) {
	var t token
	if len(raw) > MaxSize {
		return t, fmt.Errorf("%d bytes, want at most %d", len(raw), MaxSize)
	}
	if n := bytes.Count(raw, []byte(".")); n != 2 {
		return t, fmt.Errorf("%d parts, want 3", n+1)
	}
	// The standard library's decoder ignores line breaks.
	if bytes.ContainsAny(raw, "\r\n") {
		return t, errors.New("line break")
	}
	t.signed = raw[:bytes.LastIndexByte(raw, '.')]
	buffer := make([]byte, base64.RawURLEncoding.DecodedLen(len(raw)))
	var header []byte
	for _, into := range []*[]byte{&header, &t.payload, &t.signature} {
		part, rest, _ := bytes.Cut(raw, []byte("."))
		raw = rest
		n, err := strict.Decode(buffer, part)
		if err != nil {
			return t, err
		}
		*into, buffer = buffer[:n:n], buffer[n:]
	}
	var err error
	t.kid, err = keyID(header)
	return t, err
}

func keyID(header []byte) (string, error) {
	var alg, kid string
	typ := "JWT"
	fields := []jsonspan.Field{
		{Name: "alg", Text: &alg}, {Name: "typ", Text: &typ, Optional: true}, {Name: "kid", Text: &kid},
	}
	for _, name := range forbidden {
		fields = append(fields, jsonspan.Field{Name: name, Forbidden: true})
	}
	if err := jsonspan.ReadObject(header, fields); err != nil {
		return "", fmt.Errorf("header: %w", err)
	}
	switch {
	case alg != "RS256":
		return "", fmt.Errorf("header: alg %.20q, want RS256", alg)
	case typ != "JWT":
		return "", fmt.Errorf("header: typ %.20q, want JWT", typ)
	case !printable(kid):
		return "", fmt.Errorf("header: kid %.20q", kid)
	}
	return kid, nil
}

func printable(kid string) bool {
	return kid != "" && len(kid) <= 128 && strings.IndexFunc(kid, func(r rune) bool { return r <= ' ' || r > '~' }) < 0
}

// claims are those of a token with a verified signature; their values are not checked yet.
type claims struct {
	Issuer        string
	Audience      string // an array of one is not Google's form and is rejected
	Expiry        int64
	IssuedAt      int64
	Email         string
	EmailVerified bool
	Engine        engine
}

type engine struct {
	ProjectID       string
	ProjectNumber   int64
	Zone            string
	InstanceID      string
	InstanceName    string
	Created         int64
	Confidentiality int64
}

// maxTime is the end of the year 9999, the last time that RFC 3339 can represent.
const maxTime = 253402300799

func decode(payload []byte) (*claims, error) {
	var c claims
	e := &c.Engine
	instance := []jsonspan.Field{
		{Name: "project_id", Text: &e.ProjectID}, {Name: "project_number", Number: &e.ProjectNumber},
		{Name: "zone", Text: &e.Zone}, {Name: "instance_id", Text: &e.InstanceID},
		{Name: "instance_name", Text: &e.InstanceName}, {Name: "instance_creation_timestamp", Number: &e.Created},
		{Name: "instance_confidentiality", Number: &e.Confidentiality, Optional: true},
	}
	if err := jsonspan.ReadObject(payload, []jsonspan.Field{
		{Name: "iss", Text: &c.Issuer}, {Name: "aud", Text: &c.Audience, Optional: true}, {Name: "exp", Number: &c.Expiry},
		{Name: "iat", Number: &c.IssuedAt},
		{Name: "email", Text: &c.Email, Optional: true}, {Name: "email_verified", Flag: &c.EmailVerified, Optional: true},
		{Name: "google", Optional: true, Object: []jsonspan.Field{
			{Name: "compute_engine", Optional: true, Object: instance},
		}},
	}); err != nil {
		return nil, err
	}
	switch {
	case c.IssuedAt <= 0: // exp limits it, too
		return nil, errors.New("iat is not a time")
	case c.Expiry <= c.IssuedAt || c.Expiry > maxTime:
		return nil, errors.New("exp is not a time, or not after iat")
	}
	return &c, nil
}

// check checks the form of the values that name the instance. They become part of a provider id, so
// they must not contain anything that could turn it into another one.
func (c *claims) check() error {
	e := &c.Engine
	if *e == (engine{}) {
		return errors.New("no google.compute_engine: not an instance's token, or one without format=full")
	}
	id, _ := strconv.ParseUint(e.InstanceID, 10, 64) // with an error, it has another spelling
	switch {
	case !project(e.ProjectID):
		return fmt.Errorf("project_id %.80q", e.ProjectID)
	case e.ProjectNumber <= 0:
		return fmt.Errorf("project_number %d", e.ProjectNumber)
	case !label(e.Zone):
		return fmt.Errorf("zone %.80q", e.Zone)
	case !label(e.InstanceName):
		return fmt.Errorf("instance_name %.80q", e.InstanceName)
	case id == 0 || strconv.FormatUint(id, 10) != e.InstanceID:
		return fmt.Errorf("instance_id %.80q", e.InstanceID)
	case e.Created <= 0 || e.Created > c.IssuedAt+int64(Leeway/time.Second):
		return fmt.Errorf("instance_creation_timestamp %d", e.Created)
	}
	return nil
}

// label reports whether s is a label of RFC 1035, 2.3.1, in lower case, like the names of Compute
// Engine's resources.
var label = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`).MatchString

// project reports whether s has the form of a project id: a label, in old projects of an
// organization prefixed with its domain ("example.com:project").
func project(s string) bool {
	domain, name, scoped := strings.Cut(s, ":")
	if !scoped {
		return label(s)
	}
	for part := range strings.SplitSeq(domain, ".") {
		// A part of a domain may begin with a digit.
		if part == "" || !label("a"+part) {
			return false
		}
	}
	return len(domain) <= 253 && label(name)
}
