// SPDX-License-Identifier: Apache-2.0

package tpm2

import (
	"encoding/asn1"
	"errors"
	"fmt"
	"regexp"
	"strconv"

	"golang.org/x/crypto/cryptobyte"
	der "golang.org/x/crypto/cryptobyte/asn1"
)

// oidGCEInstance is Google's extension that names the instance of a certificate. Google documents
// its form only in go-tpm-tools (server/verify.go); Google's certificates have six security
// properties:
//
//	GCEInstance ::= SEQUENCE {
//	    zone           UTF8String,
//	    projectNumber  INTEGER,
//	    projectID      UTF8String,
//	    instanceID     INTEGER,
//	    instanceName   UTF8String,
//	    properties     [0] EXPLICIT SEQUENCE {
//	        securityVersion  [0] EXPLICIT INTEGER OPTIONAL,
//	        isProduction     [1] EXPLICIT BOOLEAN OPTIONAL,
//	        ...              [2] and so on, each EXPLICIT and OPTIONAL
//	    } OPTIONAL
//	}
var oidGCEInstance = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 11129, 2, 1, 21}

// gceInstance is the content of the extension. All fields except production name the instance.
type gceInstance struct {
	zone          string
	projectNumber uint64
	projectID     string
	id            uint64
	name          string
	production    bool
}

// providerID returns the form that OpenShift's machine controller writes.
func (g *gceInstance) providerID() string {
	return "gce://" + g.projectID + "/" + g.zone + "/" + g.name
}

// instanceID returns the number, which Google never reuses.
func (g *gceInstance) instanceID() string { return "gcp:" + strconv.FormatUint(g.id, 10) }

// parseGCEInstance parses exactly one extension, in DER. It rejects names that would be ambiguous
// in a provider id, and numbers that name nothing.
func parseGCEInstance(raw []byte) (*gceInstance, error) {
	var (
		g      gceInstance
		outer  = cryptobyte.String(raw)
		s      cryptobyte.String
		inner  cryptobyte.String
		marked bool
	)
	if !outer.ReadASN1(&s, der.SEQUENCE) || !outer.Empty() {
		return nil, errors.New("not one sequence")
	}
	if !readUTF8(&s, &g.zone) || !s.ReadASN1Integer(&g.projectNumber) || !readUTF8(&s, &g.projectID) ||
		!s.ReadASN1Integer(&g.id) || !readUTF8(&s, &g.name) {
		return nil, errors.New("zone, project number, project, instance number or name is missing")
	}
	if !s.ReadOptionalASN1(&inner, &marked, tagged(0)) || !s.Empty() {
		return nil, errTrailing
	}
	if marked {
		if err := g.readProperties(inner); err != nil {
			return nil, fmt.Errorf("security properties: %w", err)
		}
	}
	for _, part := range [...]struct {
		what, value string
		form        *regexp.Regexp
	}{{"zone", g.zone, gceName}, {"project", g.projectID, gceProject}, {"instance name", g.name, gceName}} {
		if !part.form.MatchString(part.value) {
			return nil, fmt.Errorf("%.100q is not the name of a %s", part.value, part.what)
		}
	}
	if g.id == 0 || g.projectNumber == 0 {
		return nil, errors.New("an instance or a project with the number 0")
	}
	return &g, nil
}

// readProperties reads the known properties and skips unknown ones, which must have the same form.
func (g *gceInstance) readProperties(s cryptobyte.String) error {
	var list cryptobyte.String
	if !s.ReadASN1(&list, der.SEQUENCE) || !s.Empty() {
		return errors.New("not one sequence")
	}
	for next := uint8(0); !list.Empty(); {
		var (
			field cryptobyte.String
			tag   der.Tag
		)
		if !list.ReadAnyASN1(&field, &tag) || tag < tagged(next) || tag > tagged(30) {
			return errors.New("fields that are not marked in ascending order")
		}
		number := uint8(tag - tagged(0))
		next = number + 1
		ok := true
		switch number {
		case 0:
			var version uint64
			ok = field.ReadASN1Integer(&version)
		case 1:
			ok = field.ReadASN1Boolean(&g.production)
		default:
			var ignored cryptobyte.String
			ok = field.ReadAnyASN1(&ignored, &tag)
		}
		if !ok || !field.Empty() {
			return fmt.Errorf("field %d is not what it should be", number)
		}
	}
	return nil
}

func tagged(n uint8) der.Tag { return der.Tag(n).Constructed().ContextSpecific() }

func readUTF8(s *cryptobyte.String, out *string) bool {
	var b cryptobyte.String
	ok := s.ReadASN1(&b, der.UTF8String)
	*out = string(b)
	return ok
}

// The forms of names at Google, which have at most 100 characters.
var (
	gceName    = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,99}$`)
	gceProject = regexp.MustCompile(`^[a-z0-9][a-z0-9.:-]{0,99}$`)
)
