// SPDX-License-Identifier: Apache-2.0

package azureattested

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
)

// content is the content that Azure signed.
type content struct {
	nonce            string
	vmID             string // lower case
	subscription     string // lower case
	sku              string
	created, expires time.Time
}

// timeLayout is the layout of the times in a document (Azure Instance Metadata Service, attested
// data). UTC is written as -0000.
const timeLayout = "01/02/06 15:04:05 -0700"

// parseContent parses the JSON object. Unknown names are ignored, because Azure adds names without
// notice. A name that occurs twice, or that differs from a known name only in case, is an error.
func parseContent(raw []byte) (content, error) {
	var c content
	var subscription, vmID, created, expires string
	err := readObject(raw, []field{
		{name: "nonce", text: &c.nonce}, {name: "vmId", text: &vmID}, {name: "subscriptionId", text: &subscription},
		{name: "sku", text: &c.sku, optional: true},
		{name: "timeStamp", object: []field{{name: "createdOn", text: &created}, {name: "expiresOn", text: &expires}}},
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
		return content{}, errors.New("expires before it was created")
	}
	return c, nil
}

// parseGUID parses 8-4-4-4-12 hexadecimal digits and returns them in lower case.
func parseGUID(s string) (string, bool) {
	_, err := uuid.Parse(s)
	return strings.ToLower(s), err == nil && len(s) == 36
}
