// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Limits of an OVF environment. A real one has a few kilobytes and a depth of 3.
const (
	maxOVF      = 1 << 20
	maxOVFDepth = 16
)

// ovfProperties returns the properties in an OVF environment (DSP0243, 9.5):
// Environment/PropertySection/Property with the attributes key and value. As in Ignition,
// namespaces are ignored, and the last of several equal keys is used. Everything after the root
// element is ignored. The document comes from the hypervisor and is untrusted, so its size and
// depth are limited.
func ovfProperties(document string) (map[string]string, error) {
	if len(document) > maxOVF {
		return nil, fmt.Errorf("it has more than %d bytes", maxOVF)
	}
	in := xml.NewDecoder(strings.NewReader(document))
	properties := map[string]string{}
	var open []string
	for {
		token, err := in.Token()
		if errors.Is(err, io.EOF) {
			return nil, errors.New("it has no element")
		}
		if err != nil {
			return nil, err
		}
		switch t := token.(type) {
		case xml.StartElement:
			if open = append(open, t.Name.Local); len(open) > maxOVFDepth {
				return nil, fmt.Errorf("it is more than %d elements deep", maxOVFDepth)
			}
			if len(open) == 3 && open[1] == "PropertySection" && open[2] == "Property" {
				var key, value string
				for _, a := range t.Attr {
					switch a.Name.Local {
					case "key":
						key = a.Value
					case "value":
						value = a.Value
					}
				}
				properties[key] = value
			}
		case xml.EndElement:
			if open = open[:len(open)-1]; len(open) == 0 {
				return properties, nil
			}
		}
	}
}
