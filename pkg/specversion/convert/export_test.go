// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"encoding/json"

	"github.com/coreos/ignition/v2/config/v3_5/types"

	"github.com/mcs-attest/mcs-attest/pkg/specversion"
)

// Whole is From35 without replaced contents.
func Whole(config types.Config, to specversion.Version) ([]byte, error) {
	config.Ignition.Version = types.MaxVersion.String()
	raw, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	return from35(raw, to)
}

// ParseWhole is Parse without replaced contents.
var ParseWhole = parseWhole
