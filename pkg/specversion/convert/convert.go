// Package convert writes an Ignition config of specification 3.5 in an older version,
// without a loss or not at all.
//
// A conversion to 3.4 and below does, in this order:
//
//   - what says no more than a field's absence is left out: an empty list or object,
//     and a value that is the default;
//   - every field that is left must be one of the older version: otherwise the
//     refusal names it;
//   - the same for values that an older version reads differently: setuid, setgid
//     and sticky bits below 3.4;
//   - the older version's own validation must pass: it knows fewer sources, file
//     systems and hashes;
//   - read by Ignition's newest code it must be the config that came in.
//
// 2.2 is written from what passes as 3.0, see [From35]. Its meaning differs in more
// places (Ignition, "Migrating configs", from 2.3.0 to 3.0.0); what these touch is
// written out or refused:
//
//   - a mode that is not given is written out, as the defaults differ;
//   - files are overwritten by default there and not here: that is written out;
//   - a file's list of what to append becomes entries of their own;
//   - files belong to a file system by its name, not by their path;
//   - partitions, which are counted in sectors there and never matched with those
//     that exist, are refused; so is a file without contents, a config to be merged,
//     a file system without a format or at /, and a directory whose missing parents
//     would take on its own mode and owner.
package convert

import (
	"bytes"
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

// RefusedError says that a config cannot be written in an older version.
type RefusedError struct {
	To specversion.Version
	// Field is where, such as storage.luks[data].cex; "" if it is no one field.
	Field string
	Why   string
}

func (e *RefusedError) Error() string {
	if e.Field == "" {
		return e.Why
	}
	return e.Field + ": " + e.Why
}

// target is a version that a config of 3.5 is written in.
type target struct {
	schema reflect.Type
	valid  func(raw []byte, to, asked specversion.Version) error
}

func version[C any](parse func([]byte) (C, report.Report, error)) target {
	return target{reflect.TypeFor[C](), func(raw []byte, to, asked specversion.Version) error {
		return valid(raw, parse, to, asked)
	}}
}

// valid says whether raw passes as a config of version to.
func valid[C any](raw []byte, parse func([]byte) (C, report.Report, error), to, asked specversion.Version) error {
	if _, r, err := parse(raw); err != nil || r.IsFatal() {
		return &RefusedError{To: asked, Why: "as spec " + to.String() + " it is not valid: " + firstProblem(r, err)}
	}
	return nil
}

// targets are those of major version 3, by their minor one.
var targets = []target{version(v3_0.Parse), version(v3_1.Parse), version(v3_2.Parse), version(v3_3.Parse),
	version(v3_4.Parse)}

// From35 is a config of spec 3.5 in version to, in JSON: 2.2 or any from 3.0 to 3.5.
// What it cannot write without a loss is a [RefusedError].
func From35(config types.Config, to specversion.Version) ([]byte, error) {
	config.Ignition.Version = types.MaxVersion.String()
	config, contents := takeOut(config)
	raw, err := json.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	if raw, err = from35(raw, to); err != nil {
		return nil, err
	}
	return contents.putBack(raw)
}

func from35(raw []byte, to specversion.Version) ([]byte, error) {
	switch {
	case to == specversion.Version{Major: 3, Minor: 5}:
		return raw, valid(raw, v3_5.Parse, to, to)
	case to == specversion.Version{Major: 2, Minor: 2}:
		raw, err := down(raw, specversion.Version{Major: 3, Minor: 0}, to)
		if err != nil {
			return nil, err
		}
		return to22(raw, to)
	case to.Major == 3 && to.Minor >= 0 && to.Minor < len(targets):
		return down(raw, to, to)
	}
	return nil, &RefusedError{To: to, Why: "there is no such version"}
}

// Parse reads a config of spec 3.0 to 3.5 as one of 3.5. The error has nothing of
// what is in files.
func Parse(raw []byte) (types.Config, error) {
	if short, contents := shorten(raw); contents != nil {
		if c, err := parseWhole(short); err == nil && contents.restore(&c) {
			return c, nil
		}
	}
	return parseWhole(raw)
}

func parseWhole(raw []byte) (types.Config, error) {
	c, r, err := v3_5.ParseCompatibleVersion(raw)
	if err != nil || r.IsFatal() {
		return types.Config{}, fmt.Errorf("not a valid config: %s", firstProblem(r, err))
	}
	return c, nil
}

// down writes a config of 3.5 in a version of 3; asked is the one that the refusal names.
func down(raw []byte, to, asked specversion.Version) ([]byte, error) {
	t := targets[to.Minor]
	tree, err := parse(raw)
	if err != nil {
		return nil, err
	}
	tree = withoutDefaults(withoutEmpty(tree))
	full := encode(tree)
	if err := known(tree, t.schema, "", asked); err != nil {
		return nil, err
	}
	if to.Minor < 4 {
		if err := specialBits(tree, asked); err != nil {
			return nil, err
		}
	}
	setVersion(tree, to.String())
	out := encode(tree)
	if err := t.valid(out, to, asked); err != nil {
		return nil, err
	}
	if err := same(full, out); err != nil {
		return nil, &RefusedError{To: asked, Why: err.Error()}
	}
	return out, nil
}

// firstProblem is what the validation said, on one line.
func firstProblem(r report.Report, err error) string {
	for _, e := range r.Entries {
		if e.Kind != report.Error {
			continue
		}
		at := e.Context.String()
		if strings.HasSuffix(at, ".source") {
			// The message may have some of the data URL.
			return at + ": not a URL of a kind that it can have"
		}
		return at + ": " + e.Message
	}
	if err != nil {
		return err.Error()
	}
	return "no reason given"
}

// same says whether out, read by Ignition's newest code, is the config full.
func same(full, out []byte) error {
	up, err := Parse(out)
	if err != nil {
		return err
	}
	back, err := json.Marshal(up)
	if err != nil {
		return err
	}
	tree, err := parse(back)
	if err != nil {
		return err
	}
	before, err := parse(full)
	if err != nil {
		return err
	}
	// Reading 3.4, Ignition up to 2.26 forgets this one; the releases that ask for 3.4 do not.
	forgotten := []string{"storage", "luks", "clevis", "tang", "advertisement"}
	if !bytes.Equal(encode(without(withoutEmpty(tree), forgotten, nil)), encode(without(before, forgotten, nil))) {
		return errors.New("it would not say the same")
	}
	return nil
}
