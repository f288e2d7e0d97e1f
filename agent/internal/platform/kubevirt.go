package platform

import "context"

// kubevirt reads one of two drives; a machine has only one. Ignition 2.14 knows
// only the first.
func kubevirt(ctx context.Context, m Machine) (UserData, error) {
	return m.fromConfigDrive(ctx, m.Wait, configDrive{"config-2", openstackUserData},
		configDrive{"cidata", nocloudUserData})
}
