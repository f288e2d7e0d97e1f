// SPDX-License-Identifier: Apache-2.0

package awssts

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/awssts/request"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// MaxAnswer limits STS's response in bytes; a normal one has about 500.
const MaxAnswer = 16 << 10

const namespace = "https://sts.amazonaws.com/doc/2011-06-15/"

// identity is STS's statement about the signer.
type identity struct {
	Arn, UserID, Account string
}

// Error codes that mean that the signature or the session is invalid. Every other status except 200
// can have another cause: a quota (a 400 in this protocol), or a 403 from a proxy or an endpoint
// policy. STS can also return InvalidClientTokenId and UnrecognizedClientException for credentials
// that were issued seconds ago, as at a first boot, and have not reached every server yet.
var (
	wrong = []string{"SignatureDoesNotMatch", "IncompleteSignature", "InvalidSignatureException",
		"MissingAuthenticationToken"}
	late = []string{"ExpiredToken", "ExpiredTokenException", "RequestExpired"}
)

// read checks the response: status, type, size, then the whole document.
func read(status int, contentType string, body []byte) (identity, error) {
	var none identity
	if len(body) > MaxAnswer {
		return none, reason.Deny(reason.ProviderUnavailable, "aws-sts: STS answered with more than %d bytes", MaxAnswer)
	}
	if !isXML(contentType) {
		return none, reason.Deny(reason.ProviderUnavailable, "aws-sts: STS answered %d with content of type %.64q", status,
			contentType)
	}
	if status != http.StatusOK {
		code, message := errorOf(body)
		switch {
		case status >= 400 && status < 500 && slices.Contains(wrong, code):
			if wrongTime(message) {
				return none, reason.Deny(reason.Internal,
					"aws-sts: STS rejects the time of the signature, so one of the two times is wrong: %.200q", message)
			}
			return none, reason.Deny(reason.DocumentInvalid,
				"aws-sts: STS rejects the signature over this conversation: %s", code)
		case status >= 400 && status < 500 && slices.Contains(late, code):
			return none, reason.Deny(reason.DocumentNotFresh, "aws-sts: STS rejects the credentials: %s", code)
		}
		return none, reason.Deny(reason.ProviderUnavailable, "aws-sts: STS answered %d %.64q", status, code)
	}
	var id identity
	var requestID string
	err := parse(body, element{"GetCallerIdentityResponse", nil, []element{
		{"GetCallerIdentityResult", nil, []element{{"Arn", &id.Arn, nil}, {"UserId", &id.UserID, nil},
			{"Account", &id.Account, nil}}},
		{"ResponseMetadata", nil, []element{{"RequestId", &requestID, nil}}},
	}})
	if err != nil {
		return none, reason.Wrap(reason.ProviderUnavailable, err, "aws-sts: STS's answer cannot be parsed")
	}
	return id, nil
}

func isXML(contentType string) bool {
	kind, parameters, err := mime.ParseMediaType(contentType)
	if err != nil || kind != "text/xml" {
		return false
	}
	delete(parameters, "charset")
	return len(parameters) == 0
}

// wrongTime reports whether STS says that a signature is too old or not valid yet. It uses the code of a wrong
// signature for that.
func wrongTime(message string) bool {
	return strings.HasPrefix(message, "Signature expired: ") || strings.HasPrefix(message, "Signature not yet current: ")
}

func errorOf(body []byte) (code, message string) {
	var kind, requestID string
	err := parse(body, element{"ErrorResponse", nil, []element{
		{"Error", nil, []element{{"Type", &kind, nil}, {"Code", &code, nil}, {"Message", &message, nil}}},
		{"RequestId", &requestID, nil},
	}})
	if err != nil {
		return "", ""
	}
	return code, message
}

// element is a required element that occurs exactly once. It has text or children.
type element struct {
	name     string
	text     *string
	children []element
}

// parse reads a document that consists only of root: no other element, no attribute, comment or
// instruction, and text only where it is allowed.
//
// encoding/xml skips to the first element that it can read, wherever that is. So text inside a JSON
// response could be mistaken for STS's answer.
func parse(body []byte, root element) error {
	d := xml.NewDecoder(bytes.NewReader(body))
	first, _ := d.Token() // nil with an error, which remains
	if bytes.HasPrefix(body, []byte("<?xml ")) {
		first, _ = next(d)
	}
	start, _ := first.(xml.StartElement)
	if len(start.Attr) != 1 || start.Attr[0].Name != (xml.Name{Local: "xmlns"}) {
		return fmt.Errorf("the document does not begin with %s and its namespace", root.name)
	}
	start.Attr = nil
	if err := root.read(d, start); err != nil {
		return err
	}
	if _, err := next(d); !errors.Is(err, io.EOF) {
		return errors.New("trailing data after the document")
	}
	return nil
}

// next returns the next token that is not white space.
func next(d *xml.Decoder) (xml.Token, error) {
	for {
		t, err := d.Token()
		if err != nil {
			return nil, err
		}
		if text, ok := t.(xml.CharData); ok && strings.Trim(string(text), " \t\r\n") == "" {
			continue
		}
		return t, nil
	}
}

func (e element) read(d *xml.Decoder, start xml.StartElement) error {
	if start.Name != (xml.Name{Space: namespace, Local: e.name}) || len(start.Attr) != 0 {
		return fmt.Errorf("element %.64q where %s belongs", start.Name.Local, e.name)
	}
	if e.text != nil {
		return e.readText(d)
	}
	left := slices.Clone(e.children)
	for {
		t, err := next(d)
		switch t := t.(type) {
		case xml.StartElement:
			i := slices.IndexFunc(left, func(c element) bool { return c.name == t.Name.Local })
			if i < 0 {
				return fmt.Errorf("element %.64q in %s is unknown or occurs twice", t.Name.Local, e.name)
			}
			if err := left[i].read(d, t); err != nil {
				return err
			}
			left = slices.Delete(left, i, i+1)
		case xml.EndElement:
			if len(left) != 0 {
				return fmt.Errorf("%s has no %s", e.name, left[0].name)
			}
			return nil
		default:
			return errors.Join(fmt.Errorf("%T in %s", t, e.name), err)
		}
	}
}

func (e element) readText(d *xml.Decoder) error {
	t, _ := d.Token() // nil with an error
	if text, ok := t.(xml.CharData); ok {
		*e.text = string(text)
		t, _ = d.Token()
	}
	if _, ok := t.(xml.EndElement); !ok {
		return fmt.Errorf("%s is not text and its end", e.name)
	}
	return nil
}

// session is the session of an assumed role.
type session struct {
	role, roleID, name string
}

var (
	assumed = regexp.MustCompile(
		`^arn:([a-z-]{3,16}):sts::([0-9]{12}):assumed-role/([\w+=,.@-]{1,64})/([\w+=,.@-]{2,64})$`)
	userID     = regexp.MustCompile(`^(AROA[A-Z0-9]{12,124}):([\w+=,.@-]{2,64})$`)
	instanceID = regexp.MustCompile(`^i-([0-9a-f]{8}|[0-9a-f]{17})$`)
	zoneName   = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
	zoneSuffix = regexp.MustCompile(`^([a-z]|-[a-z0-9-]*[a-z0-9])$`)
)

// session parses the three names that STS returns, which partly contain the same information.
func (id identity) session(region string) (session, error) {
	arn, user := assumed.FindStringSubmatch(id.Arn), userID.FindStringSubmatch(id.UserID)
	p, _ := request.PartitionOf(region)
	switch {
	case arn == nil || user == nil:
		return session{}, reason.Deny(reason.DocumentInvalid,
			"aws-sts: the signer is not a role's session: %.256q, user id %.128q", id.Arn, id.UserID)
	case arn[1] != p.Name:
		return session{}, reason.Deny(reason.DocumentInvalid, "aws-sts: the signer %.256q is not of partition %s",
			id.Arn, p.Name)
	case arn[2] != id.Account || arn[4] != user[2]:
		return session{}, reason.Deny(reason.DocumentInvalid, "aws-sts: the signer's names disagree: %.256q, %.128q, %s",
			id.Arn, id.UserID, id.Account)
	}
	return session{role: arn[3], roleID: user[1], name: arn[4]}, nil
}

// Instance is the content of a Machine's spec.providerID on AWS.
type Instance struct {
	Zone, ID string
}

// ParseProviderID reads "aws:///<zone>/<instance id>".
func ParseProviderID(s string) (Instance, bool) {
	rest, ok := strings.CutPrefix(s, "aws:///")
	zone, id, _ := strings.Cut(rest, "/")
	if !ok || len(zone) > 64 || !zoneName.MatchString(zone) || !instanceID.MatchString(id) {
		return Instance{}, false
	}
	return Instance{Zone: zone, ID: id}, true
}

// In reports whether the instance's zone is in a region. The name of a zone is that of the region
// with a letter, or, for local and wavelength zones, with more words.
func (i Instance) In(region string) bool {
	rest, ok := strings.CutPrefix(i.Zone, region)
	return ok && zoneSuffix.MatchString(rest)
}
