// SPDX-License-Identifier: Apache-2.0

package grub

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// defaultEntries is the folder that blscfg reads. A variable can name another one.
const defaultEntries = "/loader/entries"

// loaderEntries adds what the command blscfg of Fedora and RHEL reads: each entry of a folder. It
// measures nothing else. The commands of an entry are those of a [LoaderEntry].
func (b *Boot) loaderEntries(forms []string, vars *variables) error {
	for _, form := range forms {
		if _, arg, _ := strings.Cut(form, " "); strings.ContainsAny(arg, "(/") {
			return fmt.Errorf("reads %q. Put the entries into %s", display(arg), defaultEntries)
		}
		b.Commands = append(b.Commands, display(form))
	}
	for _, name := range []string{"early_initrd", "devicetree"} {
		if v, err := vars.ifSet(name); err != nil {
			return err
		} else if slices.ContainsFunc(v, func(s string) bool { return s != "" }) {
			return fmt.Errorf("the variable %s is not supported. Write its files into the entries", name)
		}
	}
	if v, err := vars.ifSet("save_default"); err != nil {
		return err
	} else if slices.Contains(v, "true") {
		b.Commands = append(b.Commands, "savedefault")
	}
	named, err := vars.ifSet("blsdir")
	if err != nil {
		return err
	}
	for _, folder := range append([]string{defaultEntries}, named...) {
		if folder = strings.TrimRight(display(folder), "/"); folder != "" {
			b.Files = append(b.Files, File{folder + "/*.conf", LoaderEntry})
		}
	}
	return nil
}

// entryCommands returns the commands of the menu entry that blscfg makes from an entry of the Boot Loader
// Specification (rhboot/grub2, grub-core/commands/blscfg.c; branches rhel-8-main to rhel-10-main, and
// fedora-43). It differs from the specification: of each key but initrd, only the first counts, and a
// line without a value ends the entry. GRUB interprets the values as a script.
func entryCommands(text string) (string, error) {
	keys := map[string][]string{}
	for line := range strings.Lines(strings.ReplaceAll(text, "\r", "")) {
		line = strings.TrimLeft(strings.TrimSuffix(line, "\n"), " \t")
		if strings.HasPrefix(line, "#") {
			continue
		}
		key, value, ok := strings.Cut(line, " ")
		if !ok {
			key, value, ok = strings.Cut(line, "\t")
		}
		if !ok || value == "" {
			break
		}
		if strings.Contains(key, "\t") {
			return "", fmt.Errorf("the line %q has a tab before a space, which GRUB does not separate", firstLine(line))
		}
		keys[key] = append(keys[key], strings.TrimLeft(value, " \t"))
	}
	if len(keys["efi"]) > 0 || len(keys["uki"]) > 0 {
		return "", errors.New("the entry starts a unified kernel image. Use 'refvals --uki' for that image")
	}
	if len(keys["linux"]) == 0 {
		return "", nil // GRUB ignores it
	}
	options := "$default_kernelopts"
	if values := keys["options"]; len(values) > 0 {
		options = values[0]
	}
	for word := range strings.FieldsSeq(options) {
		if name, after, ok := variable(strings.TrimPrefix(word, "$")); strings.Contains(word, "$") &&
			(!strings.HasPrefix(word, "$") || strings.HasPrefix(word, "${") || !ok || name == "" || after != "") {
			return "", fmt.Errorf("the option %q has a variable that is not a word. Write $NAME between spaces", word)
		}
	}
	// RHEL 8 has the underscore.
	script := "load_video\nset gfxpayload=keep\nset gfx_payload=keep\ninsmod gzio\nlinux ($root)" + keys["linux"][0] +
		" " + options + "\n"
	if len(keys["initrd"]) > 0 {
		script += "initrd"
		for _, path := range keys["initrd"] {
			script += " ($root)" + path
		}
		script += "\n"
	}
	if len(keys["devicetree"]) > 0 {
		script += "devicetree ($root)" + keys["devicetree"][0] + "\n"
	}
	return script, nil
}
