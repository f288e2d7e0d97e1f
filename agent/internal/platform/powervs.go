// SPDX-License-Identifier: Apache-2.0

package platform

import "context"

// powervs reads the config drive.
func powervs(ctx context.Context, m Machine) (UserData, error) {
	return m.fromConfigDrive(ctx, m.Wait, configDrive{"config-2", openstackUserData})
}
