// SPDX-License-Identifier: Apache-2.0

package restore

// Triggered reports whether the controller runs.
func (g *Guard) Triggered() bool { return g.trigger.Running() }
