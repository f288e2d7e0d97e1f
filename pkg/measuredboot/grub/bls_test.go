// SPDX-License-Identifier: Apache-2.0

package grub

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

// blscfg is a configuration that reads loader entries.
var blscfg = Script{Name: "grub.cfg", Text: "set first=\"\"\nif x; then set net='rd.neednet=1  ip=dhcp'\n" +
	"set first=\"ignition.firstboot ${net}\"\nfi\nblscfg\n"}

func entry(lines ...string) Script {
	return Script{Name: "a.conf", Text: strings.Join(lines, "\n") + "\n", Format: LoaderEntry}
}

func TestRead_LoaderEntry(t *testing.T) {
	got, err := Read(blscfg, entry("# made by a tool", "title A", "options ro $first quiet", "options ignored",
		"linux /a/vmlinuz", "initrd /a/ucode", "initrd /a/initrd", "grub_users $grub_users",
		"devicetree /a/board.dtb", "", "linux /ignored"))
	if err != nil {
		t.Fatal(err)
	}
	want := Entry{
		Kernel: "(*)/a/vmlinuz",
		CommandLines: []string{
			"(*)/a/vmlinuz ro ignition.firstboot quiet", // the variable net can also be empty
			"(*)/a/vmlinuz ro ignition.firstboot rd.neednet=1 ip=dhcp quiet",
			"(*)/a/vmlinuz ro quiet",
		},
		Initrds: []string{"(*)/a/ucode", "(*)/a/initrd"},
	}
	if len(got.Entries) != 1 {
		t.Fatalf("got %q", got.Entries)
	}
	for _, l := range want.CommandLines {
		want.Commands = append(want.Commands, "linux "+l)
	}
	want.Commands = append(want.Commands, "initrd (*)/a/ucode (*)/a/initrd")
	if !reflect.DeepEqual(got.Entries[0], want) {
		t.Errorf("got\n%q, expected\n%q", got.Entries[0], want)
	}
	for _, c := range []string{"blscfg", "load_video", "set gfxpayload=keep", "devicetree (*)/a/board.dtb"} {
		if !slices.Contains(got.Commands, c) {
			t.Errorf("no %q in %q", c, got.Commands)
		}
	}
	files := []File{{"/loader/entries/*.conf", LoaderEntry}, {"(*)/a/board.dtb", Data}}
	if !slices.Equal(got.Files, files) {
		t.Errorf("files %v", got.Files)
	}
}

func TestRead_LoaderEntryWithoutAKernelIsIgnored(t *testing.T) {
	for _, e := range []Script{entry("title A", "initrd /a"), entry("noseparator", "linux /a"), entry("")} {
		if got, err := Read(blscfg, e); err != nil || len(got.Entries) != 0 {
			t.Errorf("%q: %v, %v", e.Text, got, err)
		}
	}
}

func TestRead_DeniesLoaderEntries(t *testing.T) {
	for text, want := range map[string]string{
		"linux /a\noptions ro ${first}":                       "Write $NAME between spaces",
		"linux /a\noptions root=$first":                       "Write $NAME between spaces",
		"linux /a\noptions ro $other":                         "no file of this image sets the variable other",
		"linux /a":                                            "no file of this image sets the variable default_kernelopts",
		"linux\t/a x":                                         "a tab before a space",
		"efi /EFI/Linux/a.efi":                                "refvals --uki",
		"linux /a\noptions x='a b'":                           "is not supported",
		"linux /a\noptions \"":                                "does not end",
		"linux /a\noptions ro\ninitrd /b\x00":                 "not a text",
		"linux /a\noptions ro" + strings.Repeat(" $first", 5): "forms",
	} {
		if _, err := Read(blscfg, entry(text)); err == nil || !strings.HasPrefix(err.Error(), "a.conf: ") ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, config := range []string{"set early_initrd=/a\nblscfg", "set devicetree=/a\nblscfg", "blscfg (hd0)/x"} {
		_, err := Read(Script{Name: "grub.cfg", Text: config})
		if err == nil || !strings.HasPrefix(err.Error(), "grub.cfg, line ") {
			t.Errorf("%q: %v", config, err)
		}
	}
}

func TestRead_Environment(t *testing.T) {
	config := Script{Name: "grub.cfg", Text: "load_env\nlinux /k $kernelopts\ninitrd /i"}
	env := "# GRUB Environment Block\n# WARNING\nkernelopts=root=LABEL=root ro\nboot_success=1\n" +
		strings.Repeat("#", 100)
	got, err := Read(config, Script{Name: "grubenv", Text: env, Format: Environment})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"/k", "/k root=LABEL=root ro"}; !slices.Equal(got.Entries[0].CommandLines, want) {
		t.Errorf("got %q", got.Entries[0].CommandLines)
	}
	for _, text := range []string{"x=1\n", "# GRUB Environment Block\nx", "# GRUB Environment Block\nx=1",
		"# GRUB Environment Block\nx=1\\\n2\n", "# GRUB Environment Block\nx\ny=1\n", "# GRUB Environment Block\nx=\x00\n"} {
		if _, err := Read(config, Script{Name: "grubenv", Text: text, Format: Environment}); err == nil ||
			!strings.HasPrefix(err.Error(), "grubenv: ") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestRead_FilesThatCommandsRead(t *testing.T) {
	got, err := Read(Script{Name: "grub.cfg", Text: `
if [ -s $prefix/grubenv ]; then load_env; fi
load_env -f ${config_directory}/env x
load_env --file=/env2
[ -f /tested ]
! search --file --set=root /found
search --label boot --set=root
source $prefix/custom.cfg
configfile (hd0)/x.cfg
set font=unicode
loadfont $font
loadfont /f.pf2
background_image -m stretch /i.png
function f { source /y.cfg; }
cat $1
`})
	if err != nil {
		t.Fatal(err)
	}
	want := []File{
		{"*/grubenv", Data}, {"*/grubenv", Environment}, {"*/env", Environment}, {"/env2", Environment}, {"/found", Data},
		{"*/custom.cfg", Config}, {"(hd0)/x.cfg", Config}, {"*/fonts/unicode.pf2", Data}, {"/f.pf2", Data}, {"/i.png", Data},
		{"/y.cfg", Config},
	}
	if !slices.Equal(got.Files, want) {
		t.Errorf("got\n%v, expected\n%v", got.Files, want)
	}
}

func TestRead_NamesTheLine(t *testing.T) {
	for text, want := range map[string]string{
		"set a=1\n\nsource $x\n":                  "line 3: the command source: the file \"*\" is not known. Write its name",
		"if x; then\n  # c\n  eval \"$x\"\nfi":    "line 3: the command eval: is not supported",
		"menuentry a {\n  echo\n  linux /k $x\n}": "line 3: the command linux: no file of this image sets the variable x",
		"a\nb \\\nc\necho 'x\n\n":                 "line 4: a quote or a block does not end",
	} {
		_, err := Read(Script{Name: "grub.cfg", Text: text})
		if err == nil || !strings.HasPrefix(err.Error(), "grub.cfg, "+want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestRead_ValuesOfVariables(t *testing.T) {
	for script, want := range map[string][]string{
		"if x; then a=1; fi\nlinux /k $a":                         {"/k", "/k 1"},
		"a=1\nb=\"$a 2\"\nlinux /k $b x":                          {"/k 1 2 x"},
		"a=' 1  2 '\nlinux /k $a x":                               {"/k 1 2 x"},
		"a=1\nunset a\nlinux /k $a":                               {"/k", "/k 1"},
		"for d in p q; do set b=$d; done\nlinux /k x=$b":          {"/k x=", "/k x=p", "/k x=q"},
		"search --label boot --set dev\nlinux /k x=$dev":          {"/k x=*"},
		"regexp --set=1:dev '(.*)' $root\nlinux ($dev)/k r=$root": {"(*)/k r=*"},
	} {
		got, err := Read(Script{Name: "grub.cfg", Text: script})
		if err != nil {
			t.Errorf("%q: %v", script, err)
		} else if !slices.Equal(got.Entries[0].CommandLines, want) {
			t.Errorf("%q: got %q, expected %q", script, got.Entries[0].CommandLines, want)
		}
	}
}

func FuzzLoaderEntry(f *testing.F) {
	f.Add("options ro $first\nlinux /a\ninitrd /b\n", "# GRUB Environment Block\na=1\n####")
	f.Add("title\tx\nlinux /a ${b}\n", "")
	f.Fuzz(func(t *testing.T, text, env string) {
		boot, err := Read(blscfg, entry(text), Script{Name: "grubenv", Text: env, Format: Environment})
		if err != nil {
			return
		}
		for _, e := range boot.Entries {
			for _, l := range e.CommandLines {
				if strings.Contains(l, unknown) || strings.Contains(l, "  ") {
					t.Errorf("%q", l)
				}
			}
		}
	})
}
