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

// parseIgnition reads a MachineConfig's spec.config, of which raw is the JSON.
func parseIgnition(doc manifest.Document, raw []byte) (*types.Config, *manifest.Problem) {
	const field = "spec.config"
	problem := func(at, what, want string) *manifest.Problem {
		p := doc.Problem(at, what, want)
		return &p
	}
	version, err := specversion.Of(raw)
	if err != nil {
		return nil, problem(field, "no Ignition config: "+err.Error(),
			"ignition.version and what belongs to it, or no spec.config at all")
	}
	config, rpt, err := v3_5.ParseCompatibleVersion(raw)
	switch {
	case errors.Is(err, ignerrors.ErrUnknownVersion) && version.Major == 2:
		return nil, problem(field+".ignition.version", fmt.Sprintf("an Ignition config of spec %s", version),
			"spec 2 is not read here; write it in spec 3.0 to 3.5, as 'oc get machineconfig' of a rendered config shows it")
	case errors.Is(err, ignerrors.ErrUnknownVersion):
		return nil, problem(field+".ignition.version", fmt.Sprintf("an Ignition config of spec %s", version),
			"spec 3.0 to 3.5, which the machine-config-operator merges")
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

// fatal is the first error of a report on config, and which part of it is wrong.
func fatal(config types.Config, rpt report.Report) (at, message string) {
	for _, e := range rpt.Entries {
		if e.Kind.IsFatal() {
			return partAt(config, e.Context), e.Message
		}
	}
	return "", ""
}

// partAt calls the part of a config at a path by its key, where it has one: the place in
// a merged list tells nobody anything.
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
