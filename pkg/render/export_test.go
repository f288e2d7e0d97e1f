// SPDX-License-Identifier: Apache-2.0

package render

import (
	"slices"

	"github.com/coreos/ignition/v2/config/v3_5"
	"github.com/coreos/ignition/v2/config/v3_5/types"
)

// Ours returns the Ignition configs of in, merged as in Full.
func Ours(in Input) types.Config { return mergeIgnition(in.Configs) }

// Theirs returns them merged as in the machine-config-operator, one after the other.
func Theirs(in Input) types.Config {
	config := types.Config{Ignition: types.Ignition{Version: types.MaxVersion.String()}}
	for i, m := range in.Configs {
		switch {
		case m.ignition == nil:
		case i == 0:
			config = *m.ignition
		default:
			config = v3_5.Merge(config, withCompression(*m.ignition))
			config.Storage.Files = slices.Clone(config.Storage.Files)
			for i := range config.Storage.Files {
				if c := &config.Storage.Files[i].Contents; c.Compression != nil && *c.Compression == "" {
					c.Compression = nil
				}
			}
		}
	}
	config.Storage.Files = slices.Clone(config.Storage.Files)
	for i := range config.Storage.Files {
		if config.Storage.Files[i].Overwrite == nil {
			yes := true
			config.Storage.Files[i].Overwrite = &yes
		}
	}
	return config
}

// Encoded returns a config as it is served.
func Encoded(c types.Config) ([]byte, error) { return encode(c) }

// Patterns and Paths are the searched secrets, for the page that lists them.
func Patterns() []string {
	out := []string{"a bootstrap token", "a password or token"}
	for _, p := range patterns {
		out = append(out, p.what)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func Paths() []string {
	var out []string
	for _, p := range paths {
		out = append(out, p.pattern)
	}
	return out
}
