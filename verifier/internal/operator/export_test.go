// SPDX-License-Identifier: Apache-2.0

package operator

// SetPage makes lists come in small pages.
func SetPage(n int64) { page = n }
