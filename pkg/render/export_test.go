package render

import (
	"slices"

	"github.com/coreos/ignition/v2/config/v3_5"
	"github.com/coreos/ignition/v2/config/v3_5/types"
)

// Ours are the Ignition configs of in merged in their order, as Full does it.
func Ours(in Input) types.Config { return mergeIgnition(in.Configs) }

// Theirs are the same merged as the machine-config-operator does it, one after the other.
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

// Encoded is a config as it is served.
func Encoded(c types.Config) ([]byte, error) { return encode(c) }

// Patterns and Paths are what is searched for, for the page that lists them.
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
