// SPDX-License-Identifier: Apache-2.0

package grub

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestRead_Commands(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		want   []string
	}{
		"words and quotes": {
			"set timeout=0\nset  a=\"b c\" # comment\necho 'd  e'; boot",
			[]string{"boot", "echo d  e", "set a=b c", "set timeout=0"},
		},
		"conditions": {
			"if [ -f \"/x\" ]; then\n  insmod y\nelif ! [ z ]; then boot; else\n  halt\nfi",
			[]string{"! [ z ]", "[ -f /x ]", "boot", "halt", "insmod y"},
		},
		"a variable that is assigned": {
			"set a=\"1 2\"\nlinux /k $a end\necho \"$a\"",
			[]string{"echo 1 2", "linux /k 1 2 end", "set a=1 2"},
		},
		"a variable that is also empty": {
			"set a=\"\"\nif x; then a=1; fi\nlinux /k $a end \\\n  more",
			[]string{"a=1", "linux /k 1 end more", "linux /k end more", "set a=", "x"},
		},
		"a variable that is not assigned": {
			"source ($root)/x.cfg\nsource ${prefix}/y",
			[]string{"source (*)/x.cfg", "source */y"},
		},
		"a menu entry": {
			"menuentry 'A B' --id x {\n\tlinux /k a\n}\n",
			[]string{"linux /k a", "menuentry A B --id x {\n\tlinux /k a\n}", "setparams A B"},
		},
		"a function": {
			"function f {\n insmod a\n}\nf",
			[]string{"f", "insmod a"},
		},
		"an escape": {"echo a\\ b\\$c", []string{"echo a b$c"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Read(Script{Name: "grub.cfg", Text: c.script})
			if err != nil {
				t.Fatal(err)
			}
			commands := got.Commands
			for _, e := range got.Entries {
				commands = append(commands, e.Commands...)
			}
			slices.Sort(commands)
			if !slices.Equal(commands, c.want) {
				t.Errorf("got\n%q, expected\n%q", commands, c.want)
			}
		})
	}
}

func TestRead_EntriesOfAMenu(t *testing.T) {
	got, err := Read(Script{Name: "grub.cfg", Text: `set first=""
if [ -f /flag ]; then set first="ignition.firstboot=1"; fi
menuentry new { linux ($root)/new/vmlinuz ro $first
initrd /ucode /new/initrd }
menuentry old { linux /old/vmlinuz ro
initrd /old/initrd }`})
	if err != nil {
		t.Fatal(err)
	}
	want := []Entry{
		{
			Kernel:       "(*)/new/vmlinuz",
			CommandLines: []string{"(*)/new/vmlinuz ro", "(*)/new/vmlinuz ro ignition.firstboot=1"},
			Initrds:      []string{"/ucode", "/new/initrd"},
			Commands: []string{"linux (*)/new/vmlinuz ro", "linux (*)/new/vmlinuz ro ignition.firstboot=1",
				"initrd /ucode /new/initrd"},
		},
		{
			Kernel:       "/old/vmlinuz",
			CommandLines: []string{"/old/vmlinuz ro"},
			Initrds:      []string{"/old/initrd"},
			Commands:     []string{"linux /old/vmlinuz ro", "initrd /old/initrd"},
		},
	}
	if !reflect.DeepEqual(got.Entries, want) {
		t.Errorf("got %q, expected %q", got.Entries, want)
	}
}

func TestRead_AnEntryLoadsAtMost64Archives(t *testing.T) {
	for n, want := range map[int]bool{64: true, 65: false} {
		script := "linux /k\n"
		for i := range n {
			script += fmt.Sprintf("initrd /i%d\n", i)
		}
		if _, err := Read(Script{Name: "grub.cfg", Text: script}); (err == nil) != want {
			t.Errorf("%d archives: %v", n, err)
		}
	}
}

func TestRead_DeniesWhatDoesNotEnd(t *testing.T) {
	for _, script := range []string{
		"linux /k isolcpus=*", "linux /k 'a=b c'", "linux $k\nset k=/1\nset k=/2",
		strings.Repeat("set x=1\nset x=2\n", 1) + "linux /k" + strings.Repeat(" $x", 7),
		"set x=1\nset x=2\necho " + strings.Repeat("$x", 7), "initrd /i",
	} {
		if _, err := Read(Script{Name: "grub.cfg", Text: script}); err == nil {
			t.Errorf("%q was read", script)
		}
	}
	for _, script := range []string{"echo 'a", "echo \"a", "menuentry a {\n boot", "menuentry a { ${b"} {
		_, err := Read(Script{Name: "grub.cfg", Text: script})
		if err == nil || !strings.HasPrefix(err.Error(), "grub.cfg, line 1: ") {
			t.Errorf("%q: %v", script, err)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add("set a=1\nif [ $a ]; then\nmenuentry 'b' { linux /k ${a} }\nfi")
	f.Fuzz(func(t *testing.T, script string) {
		boot, err := Read(Script{Name: "grub.cfg", Text: script})
		if err == nil && !slices.IsSorted(boot.Commands) {
			t.Errorf("%q", boot.Commands)
		}
	})
}
