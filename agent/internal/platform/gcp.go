// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"

	"github.com/mcs-attest/mcs-attest/agent/internal/metadata"
)

// gcp reads the instance attribute user-data.
func gcp(ctx context.Context, m Machine) (UserData, error) {
	s, err := metadata.NewGCP(m.Paths.Metadata, m.patience())
	if err != nil {
		return UserData{}, err
	}
	raw, err := s.UserData(ctx)
	return userData(raw, err, "Google Cloud user-data")
}
