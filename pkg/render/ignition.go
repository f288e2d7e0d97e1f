// SPDX-License-Identifier: Apache-2.0

package render

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	ignerrors "github.com/coreos/ignition/v2/config/shared/errors"
	"github.com/coreos/ignition/v2/config/util"
	"github.com/coreos/ignition/v2/config/v3_5"
	"github.com/coreos/ignition/v2/config/v3_5/types"
	"github.com/coreos/vcontext/path"
	"github.com/coreos/vcontext/report"

	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/pkg/specversion"
)

// parseIgnition parses a MachineConfig's spec.config, whose JSON is raw.
func parseIgnition(doc manifest.Document, raw []byte) (*types.Config, *manifest.Problem) {
	const field = "spec.config"
	problem := func(at, what, want string) *manifest.Problem {
		p := doc.Problem(at, what, want)
		return &p
	}
	version, err := specversion.Of(raw)
	if err != nil {
		return nil, problem(field, "not an Ignition config: "+err.Error(),
			"set ignition.version and the fields of that version, or remove spec.config")
	}
	config, rpt, err := v3_5.ParseCompatibleVersion(raw)
	switch {
	case errors.Is(err, ignerrors.ErrUnknownVersion) && version.Major == 2:
		return nil, problem(field+".ignition.version", fmt.Sprintf("the Ignition config has spec %s", version),
			"convert it to spec 3.0 to 3.5; spec 2 is not supported. 'oc get machineconfig' shows a rendered config in spec 3")
	case errors.Is(err, ignerrors.ErrUnknownVersion):
		return nil, problem(field+".ignition.version", fmt.Sprintf("the Ignition config has spec %s", version),
			"convert it to spec 3.0 to 3.5, which the machine-config-operator supports")
	case err != nil:
		at, what := "", err.Error()
		for _, e := range rpt.Entries {
			if e.Kind.IsFatal() {
				at = fieldPath(e.Context)
				what = strings.TrimPrefix(at, ".") + ": " + e.Message
				break
			}
		}
		return nil, problem(field+at, "not a valid Ignition config: "+what, "")
	}
	return &config, nil
}

// fatal returns the first error of a report on config, and the part that it is about.
func fatal(config types.Config, rpt report.Report) (at, message string) {
	for _, e := range rpt.Entries {
		if e.Kind.IsFatal() {
			return partAt(config, e.Context), e.Message
		}
	}
	return "", ""
}

// partAt describes the part of a config at a path, by its key if it has one. An index in a
// merged list would not help an administrator.
func partAt(config types.Config, c path.ContextPath) string {
	where := fieldPath(c)
	for _, list := range lists {
		items := reflect.ValueOf(list.of(&config))
		for i := range items.Len() {
			prefix := fmt.Sprintf(".%s[%d]", list.field, i)
			if where == prefix || strings.HasPrefix(where, prefix+".") {
				return list.kind + " " + util.CallKey(items.Index(i)) + strings.TrimPrefix(where, prefix)
			}
		}
	}
	return strings.TrimPrefix(where, ".")
}

func fieldPath(c path.ContextPath) string {
	var b strings.Builder
	for _, e := range c.Path {
		switch e := e.(type) {
		case int:
			fmt.Fprintf(&b, "[%d]", e)
		default:
			fmt.Fprintf(&b, ".%v", e)
		}
	}
	return b.String()
}
