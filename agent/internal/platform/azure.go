// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"errors"

	"github.com/mcs-attest/mcs-attest/agent/internal/metadata"
)

// azure reads the user data from the metadata service or, if there is none, the custom data from
// the virtual CD. As in Ignition, a 404 does not mean that there is none: Azure returns it while it
// services the host.
func azure(ctx context.Context, m Machine) (UserData, error) {
	s, err := metadata.NewAzure(m.Paths.Metadata, m.patience())
	if err != nil {
		return UserData{}, err
	}
	raw, err := s.UserData(ctx)
	if err != nil {
		return UserData{}, err
	}
	data, err := userData(raw, nil, "Azure user data")
	if errors.Is(err, ErrNone) {
		return azureOVF(ctx, m)
	}
	return data, err
}
