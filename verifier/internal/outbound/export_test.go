// SPDX-License-Identifier: Apache-2.0

package outbound

// Kept is how many answers are kept.
func (c *Caller) Kept() int { return len(c.kept.Keys()) }
