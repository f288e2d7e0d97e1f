package azureattested

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

// content is what Azure signed.
type content struct {
	nonce            string
	vmID             string // lower case
	subscription     string // lower case
	sku              string
	created, expires time.Time
}

// timeLayout is that of the times in a document (Azure Instance Metadata Service,
// attested data). UTC is written as -0000.
const timeLayout = "01/02/06 15:04:05 -0700"

// parseContent reads the JSON object. Names that are not known are let pass, for
// Azure adds some without notice; one that differs from a known name in case
// alone, or is there twice, is refused.
func parseContent(raw []byte) (content, error) {
	var c content
	var subscription, vmID, created, expires string
	err := readObject(raw, map[string]any{
		"nonce": &c.nonce, "vmId": &vmID, "subscriptionId": &subscription, "sku": optional{&c.sku},
		"timeStamp": map[string]any{"createdOn": &created, "expiresOn": &expires},
	})
	if err != nil {
		return content{}, err
	}
	var ok bool
	if c.vmID, ok = parseGUID(vmID); !ok {
		return content{}, fmt.Errorf("vmId %.64q", vmID)
	}
	if c.subscription, ok = parseGUID(subscription); !ok {
		return content{}, fmt.Errorf("subscriptionId %.64q", subscription)
	}
	if c.created, err = time.Parse(timeLayout, created); err != nil {
		return content{}, fmt.Errorf("createdOn %.64q", created)
	}
	if c.expires, err = time.Parse(timeLayout, expires); err != nil {
		return content{}, fmt.Errorf("expiresOn %.64q", expires)
	}
	if !c.expires.After(c.created) {
		return content{}, errors.New("expires before it was made")
	}
	return c, nil
}

// parseGUID reads 8-4-4-4-12 hexadecimal digits, and returns them in lower case.
func parseGUID(s string) (string, bool) {
	if len(s) != 36 {
		return "", false
	}
	for i := range len(s) {
		switch c := s[i]; i {
		case 8, 13, 18, 23:
			if c != '-' {
				return "", false
			}
		default:
			if (c < '0' || c > '9') && (c < 'a' || c > 'f') && (c < 'A' || c > 'F') {
				return "", false
			}
		}
	}
	return strings.ToLower(s), true
}

// optional is a field that need not be there.
type optional struct{ into *string }

const (
	maxDepth  = 8
	maxFields = 256 // in all objects together
)

// readObject reads one JSON object, whole. Fields name what is wanted: a *string,
// an optional one, an *int64, or the fields of an object inside. All that are not
// optional must be there.
func readObject(raw []byte, fields map[string]any) error {
	if !utf8.Valid(raw) {
		return errors.New("not UTF-8")
	}
	r := reader{json.NewDecoder(bytes.NewReader(raw)), maxFields}
	r.dec.UseNumber()
	if t, err := r.dec.Token(); err != nil || t != json.Delim('{') {
		return errors.New("no JSON object")
	}
	if err := r.object(fields, 1); err != nil {
		return err
	}
	if _, err := r.dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("bytes after the JSON object")
	}
	return nil
}

type reader struct {
	dec  *json.Decoder
	left int // fields
}

// object reads the members after a "{" and the "}".
func (r *reader) object(fields map[string]any, depth int) error {
	seen := make(map[string]bool, 8)
	for {
		t, err := r.dec.Token()
		if err != nil {
			return errors.New("not JSON")
		}
		if t == json.Delim('}') {
			break
		}
		name, ok := t.(string)
		if r.left--; !ok || r.left < 0 {
			return errors.New("too many fields")
		}
		folded := strings.ToLower(name)
		if seen[folded] {
			return fmt.Errorf("the field %.64q twice", name)
		}
		seen[folded] = true
		want, known := fields[name]
		if !known {
			for other := range fields {
				if strings.EqualFold(other, name) {
					return fmt.Errorf("the field %.64q, which is written %q", name, other)
				}
			}
		}
		if err := r.value(name, want, depth); err != nil {
			return err
		}
	}
	for name, want := range fields {
		if _, may := want.(optional); !may && !seen[strings.ToLower(name)] {
			return fmt.Errorf("no field %q", name)
		}
	}
	return nil
}

// value reads one value, into want where it is not nil.
func (r *reader) value(name string, want any, depth int) error {
	t, err := r.dec.Token()
	if err != nil {
		return errors.New("not JSON")
	}
	if o, ok := want.(optional); ok {
		want = o.into
	}
	ok := true
	switch want := want.(type) {
	case *string:
		*want, ok = t.(string)
	case *int64:
		var n json.Number
		if n, ok = t.(json.Number); ok {
			*want, err = n.Int64()
			ok = err == nil
		}
	case map[string]any:
		if t != json.Delim('{') {
			return fmt.Errorf("the field %.64q is no object", name)
		}
		return r.object(want, depth+1)
	case nil:
		return r.skip(t, depth+1)
	}
	if !ok {
		return fmt.Errorf("the field %.64q is of another type", name)
	}
	return nil
}

// skip reads over the value that begins with t.
func (r *reader) skip(t json.Token, depth int) error {
	switch {
	case depth > maxDepth:
		return errors.New("too deep")
	case t == json.Delim('{'):
		return r.object(nil, depth)
	case t == json.Delim('['):
		for r.dec.More() {
			if r.left--; r.left < 0 {
				return errors.New("too many fields")
			}
			t, err := r.dec.Token()
			if err != nil {
				return errors.New("not JSON")
			}
			if err := r.skip(t, depth+1); err != nil {
				return err
			}
		}
		if _, err := r.dec.Token(); err != nil {
			return errors.New("not JSON")
		}
	}
	return nil
}
