// SPDX-License-Identifier: Apache-2.0

package failure

import "time"

func init() { journalTime = time.Minute } // no test depends on the machine's speed
