// Package convert writes an Ignition config in an older version of the specification,
// without a loss or not at all.
package convert

import (
	"encoding/json"
	"fmt"

	"github.com/coreos/ignition/v2/config/v3_5/types"

	"github.com/mcs-attest/mcs-attest/pkg/specversion"
)

// From35 is a config of spec 3.5 in version to, in JSON.
func From35(config types.Config, to specversion.Version) ([]byte, error) {
	if to == (specversion.Version{Major: 3, Minor: 5}) {
		return json.Marshal(config)
	}
	return nil, fmt.Errorf("no conversion to spec %s", to)
}
