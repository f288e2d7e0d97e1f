// SPDX-License-Identifier: Apache-2.0

package platform

import "context"

// nutanix reads the config drive, which every machine has.
func nutanix(ctx context.Context, m Machine) (UserData, error) {
	return m.fromConfigDrive(ctx, m.Wait, configDrive{"config-2", openstackUserData})
}
