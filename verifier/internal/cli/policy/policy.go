// SPDX-License-Identifier: Apache-2.0

// Package policy has the commands about what machines must prove: policy check, appraise and refvals.
package policy

import "github.com/spf13/cobra"

// Commands are the commands of this noun.
func Commands() []*cobra.Command {
	return []*cobra.Command{appraiseCommand(), checkCommand(), refvalsCommand()}
}
