// SPDX-License-Identifier: Apache-2.0

package measuredboot

// Match reports whether text has exactly these words.
func (w Words) Match(text string) bool { return w.common(text) < 0 }
