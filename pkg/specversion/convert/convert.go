// SPDX-License-Identifier: Apache-2.0

// Package convert converts an Ignition config of specification 3.5 to an older version. It
// returns an error instead of losing information.
//
// A conversion to 3.4 and below has these steps:
//
//   - Remove what means the same as an absent field: empty lists and objects, and default
//     values.
//   - Check that the older version has every remaining field. Otherwise the error names
//     the field.
//   - Check for values that an older version interprets differently: setuid, setgid and
//     sticky bits below 3.4.
//   - Validate with the older version's code, which supports fewer sources, file systems
//     and hashes.
//   - Check that Ignition's newest code parses the result to the original config.
//
// 2.2 is converted from 3.0, see [From35]. Its semantics differ in more places (Ignition,
// "Migrating configs", from 2.3.0 to 3.0.0). Those are made explicit or rejected:
//
//   - An absent mode is written explicitly, because the defaults differ.
//   - overwrite is written explicitly, because it defaults to true there.
//   - A file's append list becomes separate entries.
//   - Files belong to a file system by its name, not by their path.
//   - Rejected are partitions, because 2.2 counts them in sectors and never matches
//     existing ones; files without contents; configs to be merged; file systems without a
//     format or at /; and directories whose missing parents would get their mode and owner.
package convert

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/coreos/ignition/v2/config/v3_0"
	"github.com/coreos/ignition/v2/config/v3_1"
	"github.com/coreos/ignition/v2/config/v3_2"
	"github.com/coreos/ignition/v2/config/v3_3"
	"github.com/coreos/ignition/v2/config/v3_4"
	"github.com/coreos/ignition/v2/config/v3_5"
	"github.com/coreos/ignition/v2/config/v3_5/types"
	"github.com/coreos/vcontext/report"

	"github.com/mcs-attest/mcs-attest/pkg/specversion"
)

// target is a version to which configs are converted.
type target struct {
	schema reflect.Type
	valid  func(raw []byte, to specversion.Version) error
}

func version[C any](parse func([]byte) (C, report.Report, error)) target {
	return target{reflect.TypeFor[C](), func(raw []byte, to specversion.Version) error {
		return valid(raw, parse, to)
	}}
}

// valid checks that raw is a valid config of version to.
func valid[C any](raw []byte, parse func([]byte) (C, report.Report, error), to specversion.Version) error {
	if _, r, err := parse(raw); err != nil || r.IsFatal() {
		return fmt.Errorf("it is not valid in spec %s: %s", to, firstProblem(r, err))
	}
	return nil
}

// targets are the versions 3.x, by minor version.
var targets = []target{version(v3_0.Parse), version(v3_1.Parse), version(v3_2.Parse), version(v3_3.Parse),
	version(v3_4.Parse)}

// From35 converts a config of spec 3.5 to version to, as JSON: 2.2, or 3.0 to 3.5. The error of a
// config that cannot be converted names the field, and contains no contents.
func From35(config types.Config, to specversion.Version) ([]byte, error) {
	config.Ignition.Version = types.MaxVersion.String()
	raw, err := json.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("encode config: %w", err)
	}
	switch {
	case to == specversion.Version{Major: 3, Minor: 5}:
		return raw, valid(raw, v3_5.Parse, to)
	case to == specversion.Version{Major: 2, Minor: 2}:
		raw, err := down(raw, specversion.Version{Major: 3, Minor: 0}, to)
		if err != nil {
			return nil, err
		}
		return to22(raw, to)
	case to.Major == 3 && to.Minor >= 0 && to.Minor < len(targets):
		return down(raw, to, to)
	}
	return nil, errors.New("the version is unknown")
}

// Parse parses a config of spec 3.0 to 3.5 as one of 3.5. The error contains no contents of
// files.
func Parse(raw []byte) (types.Config, error) {
	c, r, err := v3_5.ParseCompatibleVersion(raw)
	if err != nil || r.IsFatal() {
		return types.Config{}, fmt.Errorf("invalid config: %s", firstProblem(r, err))
	}
	return c, nil
}

// down converts a config of 3.5 to a version 3.x. asked is the version that an error names.
func down(raw []byte, to, asked specversion.Version) ([]byte, error) {
	t := targets[to.Minor]
	tree, err := parse(raw)
	if err != nil {
		return nil, err
	}
	removeEmpty(tree)
	removeDefaults(tree)
	if err := known(tree, t.schema, "", asked); err != nil {
		return nil, err
	}
	if to.Minor < 4 {
		if err := specialBits(tree, asked); err != nil {
			return nil, err
		}
	}
	if ignition, ok := tree["ignition"].(object); ok {
		ignition["version"] = to.String()
	}
	out, err := json.Marshal(tree)
	if err != nil {
		return nil, fmt.Errorf("encode config: %w", err)
	}
	if err := t.valid(out, to); err != nil {
		return nil, err
	}
	if err := same(tree, out); err != nil {
		return nil, err
	}
	return out, nil
}

// firstProblem returns the first error of a validation, on one line.
func firstProblem(r report.Report, err error) string {
	for _, e := range r.Entries {
		if e.Kind != report.Error {
			continue
		}
		at := e.Context.String()
		if strings.HasSuffix(at, ".source") {
			// The message may contain a part of the data URL.
			return at + ": unsupported URL"
		}
		return at + ": " + e.Message
	}
	if err != nil {
		return err.Error()
	}
	return "no reason given"
}

// same reports whether Ignition's newest code parses out to the config tree, apart from the version.
func same(tree object, out []byte) error {
	up, err := Parse(out)
	if err != nil {
		return err
	}
	back, err := json.Marshal(up)
	if err != nil {
		return err
	}
	again, err := parse(back)
	if err != nil {
		return err
	}
	removeEmpty(again)
	for _, t := range []object{tree, again} {
		remove(t, []string{"ignition", "version"}, nil)
		// Ignition up to 2.26 ignores this field when it parses 3.4; the releases that request 3.4 do not.
		remove(t, []string{"storage", "luks", "clevis", "tang", "advertisement"}, nil)
	}
	if !reflect.DeepEqual(tree, again) {
		return errors.New("the converted config would not have the same meaning")
	}
	return nil
}
