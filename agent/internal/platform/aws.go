// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"

	"github.com/mcs-attest/mcs-attest/agent/internal/metadata"
)

// patience is the patience for user data.
var patience = metadata.Endless

func (m Machine) patience() metadata.Patience {
	p := patience
	p.Waiting = m.Waiting
	return p
}

// aws reads EC2's user data with IMDSv2 only. If the service has no tokens, Ignition falls back to
// version 1, and the agent leaves the config to it.
func aws(ctx context.Context, m Machine) (UserData, error) {
	s, err := metadata.NewAWS(m.Paths.Metadata, m.patience())
	if err != nil {
		return UserData{}, err
	}
	raw, err := s.UserData(ctx)
	return userData(raw, err, "AWS user data")
}

// userData converts a metadata service's response. Like Ignition's providers for these platforms,
// it does not unpack gzip.
func userData(raw []byte, err error, from string) (UserData, error) {
	switch {
	case metadata.IsAbsent(err), err == nil && len(raw) == 0:
		return UserData{}, ErrNone
	case err != nil:
		return UserData{}, err
	}
	return UserData{raw, from}, nil
}
