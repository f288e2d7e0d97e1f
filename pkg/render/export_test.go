package render

import (
	"slices"

	"github.com/coreos/ignition/v2/config/v3_5"
	"github.com/coreos/ignition/v2/config/v3_5/types"
)

// Merged are the Ignition configs of in merged in their order, as Full does it and one
// after the other as the machine-config-operator does.
func Merged(in Input) (ours, theirs types.Config) {
	ours = mergeIgnition(in.Configs)
	theirs = types.Config{Ignition: types.Ignition{Version: types.MaxVersion.String()}}
	for i, m := range in.Configs {
		switch {
		case m.ignition == nil:
		case i == 0:
			theirs = *m.ignition
		default:
			theirs = v3_5.Merge(theirs, *m.ignition)
		}
	}
	theirs.Storage.Files = slices.Clone(theirs.Storage.Files)
	for i := range theirs.Storage.Files {
		if theirs.Storage.Files[i].Overwrite == nil {
			yes := true
			theirs.Storage.Files[i].Overwrite = &yes
		}
	}
	return ours, theirs
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
