package gcpidentity

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	// Unlike encoding/json it knows one spelling of a name and refuses a second value.
	"github.com/go-jose/go-jose/v4/json"
)

// forbidden are header members that bring a key, say where one is, or change how the token is read
// (RFC 7515, 4.1; RFC 7797). They are refused before anything could follow them.
var forbidden = []string{"jku", "jwk", "x5u", "x5c", "crit", "b64"}

// split takes a token apart without believing any of it, and returns its kid. It is
// stricter than go-jose, for which base64 has several spellings of one value.
func split(raw []byte) (kid string, err error) {
	if len(raw) > MaxSize {
		return "", fmt.Errorf("%d bytes, want at most %d", len(raw), MaxSize)
	}
	if n := bytes.Count(raw, []byte(".")); n != 2 {
		return "", fmt.Errorf("%d parts, want 3", n+1)
	}
	// The decoder of the standard library skips line breaks.
	if bytes.ContainsAny(raw, "\r\n") {
		return "", errors.New("line break")
	}
	buffer := make([]byte, base64.RawURLEncoding.DecodedLen(len(raw)))
	var first []byte
	for i, part := range bytes.SplitN(raw, []byte("."), 3) {
		n, err := base64.RawURLEncoding.Strict().Decode(buffer, part)
		if err != nil {
			return "", err
		}
		if n == 0 {
			return "", fmt.Errorf("part %d is empty", i+1)
		}
		if i == 0 {
			first, buffer = buffer[:n:n], buffer[n:]
		}
	}
	return keyID(first)
}

func keyID(header []byte) (string, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(header, &members); err != nil {
		return "", fmt.Errorf("header: %w", err)
	}
	for _, name := range forbidden {
		if _, ok := members[name]; ok {
			return "", fmt.Errorf("header: member %q", name)
		}
	}
	if alg := text(members["alg"]); alg != string(jose.RS256) {
		return "", fmt.Errorf("header: alg %.20q, want RS256", alg)
	}
	if typ, ok := members["typ"]; ok && text(typ) != "JWT" {
		return "", fmt.Errorf("header: typ %.20q, want JWT", text(typ))
	}
	kid := text(members["kid"])
	if !printable(kid) {
		return "", fmt.Errorf("header: kid %.20q", kid)
	}
	return kid, nil
}

// text is the value of a JSON string; empty for anything else.
func text(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}

func printable(kid string) bool {
	return kid != "" && len(kid) <= 128 && strings.IndexFunc(kid, func(r rune) bool { return r <= ' ' || r > '~' }) < 0
}

// claims are those of a token that was signed; what they say is not checked yet.
type claims struct {
	Issuer        string `json:"iss"`
	Audience      string `json:"aud"` // an array of one is not Google's form, and is refused
	Expiry        int64  `json:"exp"`
	IssuedAt      int64  `json:"iat"`
	Email         string `json:"email"`
	EmailVerified bool   `json:"email_verified"`
	Google        struct {
		Engine engine `json:"compute_engine"`
	} `json:"google"`
}

type engine struct {
	ProjectID       string `json:"project_id"`
	ProjectNumber   int64  `json:"project_number"`
	Zone            string `json:"zone"`
	InstanceID      string `json:"instance_id"`
	InstanceName    string `json:"instance_name"`
	Created         int64  `json:"instance_creation_timestamp"`
	Confidentiality int64  `json:"instance_confidentiality"`
}

// maxTime is the end of the year 9999, above which RFC 3339 has no form.
const maxTime = 253402300799

func decode(payload []byte) (*claims, error) {
	var c claims
	if err := json.Unmarshal(payload, &c); err != nil {
		return nil, err
	}
	for name, t := range map[string]int64{"iat": c.IssuedAt, "exp": c.Expiry} {
		if t <= 0 || t > maxTime {
			return nil, fmt.Errorf("%s is missing or no time", name)
		}
	}
	if c.Expiry <= c.IssuedAt {
		return nil, errors.New("exp is not after iat")
	}
	return &c, nil
}

// check looks at the form of what names the instance: it becomes part of a provider
// ID, so nothing may be in it that could make it another's.
func (c *claims) check() error {
	e := &c.Google.Engine
	if *e == (engine{}) {
		return errors.New("no google.compute_engine: not an instance's token, or one without format=full")
	}
	id, err := strconv.ParseUint(e.InstanceID, 10, 64)
	switch {
	case !project(e.ProjectID):
		return fmt.Errorf("project_id %.80q", e.ProjectID)
	case e.ProjectNumber <= 0:
		return fmt.Errorf("project_number %d", e.ProjectNumber)
	case !label(e.Zone):
		return fmt.Errorf("zone %.80q", e.Zone)
	case !label(e.InstanceName):
		return fmt.Errorf("instance_name %.80q", e.InstanceName)
	case err != nil || id == 0 || strconv.FormatUint(id, 10) != e.InstanceID:
		return fmt.Errorf("instance_id %.80q", e.InstanceID)
	case e.Created <= 0 || e.Created > c.IssuedAt+int64(Leeway/time.Second):
		return fmt.Errorf("instance_creation_timestamp %d", e.Created)
	}
	return nil
}

// label reports whether s is a label of RFC 1035, 2.3.1, in lower case, as the names
// of Compute Engine's resources are.
func label(s string) bool {
	if s == "" || len(s) > 63 || s[0] < 'a' || s[0] > 'z' || s[len(s)-1] == '-' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

// project reports whether s has the form of a project id: a label, in old projects
// of an organisation with its domain in front ("example.com:project").
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
