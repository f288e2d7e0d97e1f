// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"time"
)

// ibmcloudWait is Ignition's limit. Ignition then continues without a config; the agent reports
// that there is no drive.
const ibmcloudWait = 30 * time.Second

// ibmcloud reads the drive in cloud-init's layout.
func ibmcloud(ctx context.Context, m Machine) (UserData, error) {
	wait := ibmcloudWait
	if m.Wait != 0 {
		wait = min(wait, m.Wait)
	}
	return m.fromConfigDrive(ctx, wait, nocloudDrive)
}
