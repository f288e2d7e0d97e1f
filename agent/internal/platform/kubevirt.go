// SPDX-License-Identifier: Apache-2.0

package platform

import "context"

// kubevirt reads the one drive of the machine, in either layout. Ignition 2.14 supports only the
// first.
func kubevirt(ctx context.Context, m Machine) (UserData, error) {
	return m.fromConfigDrive(ctx, m.Wait, configDrive{"config-2", openstackUserData},
		configDrive{"cidata", nocloudUserData})
}
