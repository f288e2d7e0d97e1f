// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type thing struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              struct {
		Mode  string          `json:"mode,omitempty"`
		Uses  int32           `json:"uses,omitempty"`
		Names []string        `json:"names,omitempty"`
		Life  metav1.Duration `json:"life,omitempty"`
		Until *metav1.Time    `json:"until,omitempty"`
		Sets  []struct {
			All []string `json:"all"`
		} `json:"sets,omitempty"`
	} `json:"spec,omitempty"`
}

const good = `# a comment
apiVersion: example.org/v1
kind: Thing
metadata:
  name: one
  annotations:
    example.org/a.b: "x"
spec:
  mode: Enforce
  uses: 3
  names: [a, b]
  life: 10m
  until: 2026-11-21T04:00:00Z
  sets:
  - all: [a]
  - all: [b]
`

func decode(t *testing.T, raw string) (thing, []Problem) {
	t.Helper()
	docs, problems := Split("dir/thing.yaml", []byte(raw))
	if len(problems) > 0 {
		return thing{}, problems
	}
	if len(docs) != 1 {
		t.Fatalf("%d documents, expected 1", len(docs))
	}
	var v thing
	return v, docs[0].Decode(&v)
}

func TestDecodeFindsTheFault(t *testing.T) {
	if _, problems := decode(t, good); len(problems) > 0 {
		t.Fatalf("the valid manifest: %v", problems)
	}
	for name, c := range map[string]struct{ old, new, want string }{
		"an unknown field": {"  uses: 3", "  usages: 3",
			`dir/thing.yaml:10: unknown field "spec.usages"; known fields: life, mode, names, sets, until, uses`},
		"a field in the wrong case": {"  uses: 3", "  Uses: 3",
			`dir/thing.yaml:10: unknown field "spec.Uses"; did you mean "uses"?`},
		"an unknown field in a list": {"  - all: [b]", "  - any: [b]",
			`dir/thing.yaml:16: unknown field "spec.sets[1].any"; known fields: all`},
		"a field twice": {"  uses: 3", "  uses: 3\n  uses: 4",
			`dir/thing.yaml:11: "uses" is a duplicate key; the first is on line 10; remove one`},
		"a number for a text": {"mode: Enforce", "mode: 7",
			"dir/thing.yaml:9: spec.mode is a number; a string is required; put the value in quotes"},
		"a text for a number": {"uses: 3", "uses: three",
			"dir/thing.yaml:10: spec.uses is a string; a number (int32) is required"},
		"a text for a list": {"names: [a, b]", "names: a", "dir/thing.yaml:11: spec.names is a string; a list is required"},
		"a number in a list of texts": {"- all: [b]", "- all: [1]",
			"dir/thing.yaml:16: spec.sets.all is a number; a string is required; put the value in quotes"},
		"a duration without a unit": {"life: 10m", `life: "10"`, "dir/thing.yaml:12: "},
		"a time that is none":       {"until: 2026-11-21T04:00:00Z", "until: tomorrow", "dir/thing.yaml:13: "},
		"an alias": {"mode: Enforce", "mode: &a Enforce",
			"dir/thing.yaml:9: anchors and aliases are not supported; repeat the value instead"},
		"a merge key": {"mode: Enforce", "<<: {mode: Enforce}", "dir/thing.yaml:9: the key is not a string"},
		"a key that is a number": {"mode: Enforce", "7: Enforce",
			"dir/thing.yaml:9: the key is not a string; put it in quotes"},
		"an octal number":  {"uses: 3", "uses: 0o17", `dir/thing.yaml:10: "0o17" is not a plain decimal number`},
		"a tag of its own": {"mode: Enforce", "mode: !binary aGk=", "dir/thing.yaml:9: the tag"},
		"a tab":            {"  uses: 3", "\tuses: 3", "not YAML"},
		"no kind": {"kind: Thing", "# none",
			"dir/thing.yaml:2: the object has no apiVersion or no kind"},
		"a kind that is not a text":     {"kind: Thing", "kind: [Thing]", "the object has no apiVersion or no kind"},
		"a list in place of the object": {good, "- a\n- b\n", "dir/thing.yaml:1: the document is not an object"},
		"nesting without end": {"names: [a, b]", "names: " + strings.Repeat("[", 80) + strings.Repeat("]", 80),
			"nested too deeply"},
		"an annotation that is not a text": {`"x"`, "5", "metadata.annotations"},
		"an unknown field in the metadata": {"  name: one", "  nom: one", `unknown field "metadata.nom"`},
		"a List without items":             {"kind: Thing", "kind: ThingList", "the List has no items"},
		"a boolean for a text": {"mode: Enforce", "mode: true",
			"spec.mode is a boolean; a string is required; put the value in quotes"},
		"a number too large for its field":  {"uses: 3", "uses: 99999999999", "spec.uses"},
		"a second document that is garbage": {good, good + "---\n]", "not YAML"},
	} {
		t.Run(name, func(t *testing.T) {
			_, problems := decode(t, strings.Replace(good, c.old, c.new, 1))
			if len(problems) == 0 {
				t.Fatal("accepted")
			}
			if got := problems[0].Error(); !strings.Contains(got, c.want) {
				t.Errorf("problem %q\nexpected %q", got, c.want)
			}
		})
	}
}

func TestSplit(t *testing.T) {
	const item = `  - apiVersion: v1
    kind: Thing
    metadata: {name: a}
`
	for name, c := range map[string]struct {
		raw   string
		count int
	}{
		"an empty file":               {"", 0},
		"only comments":               {"# nothing\n---\n# nothing\n", 0},
		"several documents":           {good + "---\n" + good + "---\n", 2},
		"a List counts as its items":  {"apiVersion: v1\nkind: List\nitems:\n" + item + item, 2},
		"JSON is YAML":                {`{"apiVersion":"v1","kind":"Thing"}`, 1},
		"Windows line ends are taken": {strings.ReplaceAll(good, "\n", "\r\n"), 1},
	} {
		t.Run(name, func(t *testing.T) {
			docs, problems := Split("f", []byte(c.raw))
			if len(problems) > 0 || len(docs) != c.count {
				t.Errorf("%d documents and %v, expected %d", len(docs), problems, c.count)
			}
		})
	}
}

func TestScalarsFollowYAML12(t *testing.T) {
	v, problems := decode(t, strings.Replace(good, "Enforce", "Off", 1))
	if len(problems) > 0 || v.Spec.Mode != "Off" {
		t.Errorf("mode %q, %v", v.Spec.Mode, problems)
	}
	docs, _ := Split("f", []byte(strings.Replace(good, "Enforce", "Off", 1)))
	if !docs[0].Unquoted("spec.mode") || docs[0].Unquoted("spec.names") {
		t.Error("Unquoted does not tell Off from the rest")
	}
}

func TestLine(t *testing.T) {
	docs, _ := Split("f", []byte(good))
	for path, line := range map[string]int{
		"": 2, "kind": 3, "metadata": 4, "metadata.annotations.example.org/a.b": 7,
		"spec.sets[1].all": 16, "spec.sets[1].all[0]": 16, "spec.sets[9]": 14, "spec.nothing": 8, "nowhere": 2,
	} {
		if got := docs[0].Line(path); got != line {
			t.Errorf("%q is on line %d, expected %d", path, got, line)
		}
	}
}

// Notations that 'oc apply' accepts for a file's mode.
func TestSplit_ConvertsOctalNumbersOfMachineConfigs(t *testing.T) {
	const thing = "apiVersion: GROUP/v1\nkind: MachineConfig\nspec: {mode: MODE}\n"
	for _, c := range []struct{ group, mode, want string }{
		{"machineconfiguration.openshift.io", "420", "420"},
		{"machineconfiguration.openshift.io", "0644", "420"},
		{"machineconfiguration.openshift.io", "0o600", "384"},
		{"machineconfiguration.openshift.io", "00", "0"},
		{"machineconfiguration.openshift.io", "08", ""},
		{"machineconfiguration.openshift.io", `"0644"`, `"0644"`},
		{"example.com", "0644", ""},
	} {
		docs, problems := Split("f", []byte(strings.NewReplacer("GROUP", c.group, "MODE", c.mode).Replace(thing)))
		got := ""
		if len(docs) == 1 {
			_, got, _ = strings.Cut(string(docs[0].json), `"mode":`)
			got = strings.TrimRight(got, "}")
		}
		if got != c.want || (len(problems) > 0) != (c.want == "") {
			t.Errorf("%s of %s is %s, %v", c.mode, c.group, got, problems)
		}
	}
}

func FuzzSplit(f *testing.F) {
	f.Add(good)
	f.Add(good + "---\n" + good)
	f.Add("apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Thing}\n")
	f.Add("a: &a [*a]\n")
	f.Add("apiVersion: v1\nkind: Thing\nspec: {<<: {a: 1}, ? [x] : y, z: .inf, t: 2026-11-21}\n")
	f.Fuzz(func(t *testing.T, raw string) {
		docs, problems := Split("f", []byte(raw))
		if Failed(problems) && docs != nil {
			t.Error("documents beside an error")
		}
		for _, d := range docs {
			var v thing
			_ = d.Decode(&v)
			_ = d.DecodeKnown(&v)
			_ = d.Line("spec.sets[0].all")
		}
	})
}
