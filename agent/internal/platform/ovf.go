package platform

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Bounds of an OVF environment; a true one has some kilobytes and is 3 deep.
const (
	maxOVF      = 1 << 20
	maxOVFDepth = 16
)

// ovfProperties are the properties in an OVF environment (DSP0243, 9.5):
// Environment/PropertySection/Property with the attributes key and value. Names
// count without their namespaces, and the last of several equal keys counts, as
// for Ignition. What follows the root element is not looked at. The text is the
// hypervisor's, who must not be able to take the machine's memory with it: it is
// bounded in size and depth.
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
