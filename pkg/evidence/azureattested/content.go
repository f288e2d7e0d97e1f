// SPDX-License-Identifier: Apache-2.0

package azureattested

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/mcs-attest/mcs-attest/pkg/jsonspan"
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
	err := jsonspan.ReadObject(raw, []jsonspan.Field{
		{Name: "nonce", Text: &c.nonce}, {Name: "vmId", Text: &vmID}, {Name: "subscriptionId", Text: &subscription},
		{Name: "sku", Text: &c.sku, Optional: true},
		{Name: "timeStamp", Object: []jsonspan.Field{
			{Name: "createdOn", Text: &created}, {Name: "expiresOn", Text: &expires},
		}},
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
