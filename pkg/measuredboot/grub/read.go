// SPDX-License-Identifier: Apache-2.0

// Package grub computes what GRUB measures when it executes its configuration: each command after the
// expansion of variables and the command line of the kernel (PCR 8), and the files that it reads (PCR 9).
// See the GRUB Manual, "Measured Boot".
//
// It does not execute the configuration. It returns every command that the configuration contains, with
// each value that the configuration gives to a variable. So the result is a superset of what one boot
// measures.
package grub

import (
	"fmt"
	"slices"
	"strings"
)

// Limits on a configuration. Those of distributions have a few hundred commands.
const (
	maxCommands     = 4096
	maxAlternatives = 64 // of one command, by the values of its variables
	maxForm         = 64 << 10
	maxText         = 16 << 20 // all forms of all commands
	maxDepth        = 8        // of blocks
	maxInitrds      = 64       // archives that one entry loads, each of which is hashed
)

// Format is what GRUB reads from a file.
type Format int

// The formats.
const (
	Config      Format = iota // commands
	Environment               // variables: a block that load_env reads
	LoaderEntry               // an entry of the Boot Loader Specification, which blscfg reads
	Data                      // nothing that changes what GRUB executes: fonts, images
)

// Script is the text of a file that GRUB reads. Name is used in errors.
type Script struct {
	Name, Text string
	Format     Format
}

// Boot is what GRUB can measure. Words are separated by one space each, and "*" stands for a value that
// the scripts do not contain, such as the name of a device.
type Boot struct {
	Commands []string // sorted, without duplicates and without those of an entry
	Entries  []Entry  // in the order of the scripts
	Files    []File   // in the order of the commands that read them
	size     int      // of all forms
}

// Entry is a kernel that GRUB can start.
type Entry struct {
	Kernel       string   // path, possibly with a device
	CommandLines []string // with the kernel's path as the first word; sorted
	Initrds      []string // paths, in order
	Commands     []string // that load the kernel and the archives
}

// File is a path that a command reads before the kernel. Its device, and parts of the path, can be "*".
type File struct {
	Path   string
	Format Format
}

// Read returns what GRUB can measure of scripts.
func Read(scripts ...Script) (*Boot, error) {
	var all []command
	vars := &variables{named: map[string]*values{}}
	for _, s := range scripts {
		switch s.Format {
		case Environment:
			if err := vars.environment(s.Text); err != nil {
				return nil, fmt.Errorf("%s: %w", s.Name, err)
			}
		case Config, LoaderEntry:
			commands, err := parse(s)
			if err != nil {
				return nil, err
			}
			all = append(all, commands...)
		}
	}
	for _, c := range all {
		vars.assign(c)
	}
	out := &Boot{}
	for _, c := range all {
		if err := out.add(c, vars); err != nil {
			return nil, fmt.Errorf("%s: the command %s: %w", c.at, c.words[0], err)
		}
	}
	slices.Sort(out.Commands)
	out.Commands = slices.DeleteFunc(slices.Compact(out.Commands), func(c string) bool { return c == "" })
	return out, nil
}

// add adds the texts that a command can have.
func (b *Boot) add(c command, vars *variables) error {
	name := c.words[0].String()
	if name == "for" { // a keyword, which is not measured
		return nil
	}
	forms, err := forms(c.words, vars)
	if err != nil {
		return err
	}
	for _, form := range forms {
		if b.size += len(form); b.size > maxText {
			return fmt.Errorf("the commands have more than %d bytes", maxText)
		}
	}
	switch {
	case isLinux(name), isInitrd(name):
		return b.entry(forms)
	case slices.Contains(unsupported, name):
		return fmt.Errorf("is not supported. Remove it, or start this system in another way")
	case name == "blscfg":
		return b.loaderEntries(forms, vars)
	}
	for _, form := range forms {
		files, err := filesOf(form)
		if err != nil {
			return err
		}
		for _, f := range files {
			if !slices.Contains(b.Files, f) {
				b.Files = append(b.Files, f)
			}
		}
		b.Commands = append(b.Commands, display(form))
	}
	return nil
}

// unsupported commands execute a text that is not in the scripts.
var unsupported = []string{"eval", "legacy_configfile", "legacy_source", "syslinux_configfile", "syslinux_source"}

// display writes a form with "*" for what is unknown.
func display(form string) string { return strings.ReplaceAll(form, unknown, "*") }

// forms returns the texts that a command can have.
func forms(words []word, vars *variables) ([]string, error) {
	out := []string{""}
	kernel := isLinux(words[0].String())
	for i, w := range words {
		alternatives, err := w.expand(vars)
		if err != nil {
			return nil, err
		}
		if kernel {
			if err := w.plain(alternatives); err != nil {
				return nil, err
			}
		} else if !w.quoted && slices.Contains(alternatives, unknown) && !slices.Contains(alternatives, "") {
			alternatives = append(alternatives, "")
		}
		if len(out)*len(alternatives) > maxAlternatives || len(out[0])+len(alternatives[0]) > maxForm {
			return nil, fmt.Errorf("more than %d forms, or one of more than %d bytes. Set its variables fewer times",
				maxAlternatives, maxForm)
		}
		out = combine(out, alternatives, i == 0 || w.quoted)
	}
	return out, nil
}

func isLinux(command string) bool {
	return command == "linux" || command == "linuxefi" || command == "linux16"
}

func isInitrd(command string) bool {
	return command == "initrd" || command == "initrdefi" || command == "initrd16"
}

// entry adds the kernel or the initramfs that a command loads. All forms of one command are one entry.
func (b *Boot) entry(forms []string) error {
	for i, form := range forms {
		form = display(form)
		command, args, _ := strings.Cut(form, " ")
		if isLinux(command) {
			kernel, _, _ := strings.Cut(args, " ")
			if i == 0 {
				b.Entries = append(b.Entries, Entry{Kernel: kernel})
			}
			e := &b.Entries[len(b.Entries)-1]
			if e.Kernel != kernel {
				return fmt.Errorf("%q can load several kernels. Write one command for each", form)
			}
			e.CommandLines, e.Commands = append(e.CommandLines, args), append(e.Commands, form)
			continue
		}
		if len(b.Entries) == 0 {
			return fmt.Errorf("%q precedes every kernel", form)
		}
		e := &b.Entries[len(b.Entries)-1]
		e.Commands = append(e.Commands, form)
		for path := range strings.FieldsSeq(args) {
			if !slices.Contains(e.Initrds, path) {
				e.Initrds = append(e.Initrds, path)
			}
			if len(e.Initrds) > maxInitrds {
				return fmt.Errorf("an entry of %q loads more than %d initramfs archives", e.Kernel, maxInitrds)
			}
		}
	}
	return nil
}

// combine appends each form of a word to each form of a command. A word without quotes vanishes if it is
// empty.
func combine(commands, words []string, keep bool) []string {
	var out []string
	for _, c := range commands {
		for _, w := range words {
			switch {
			case c == "" || w == "" && !keep:
				out = append(out, c+w)
			default:
				out = append(out, c+" "+w)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// filesOf returns the files that a command reads. GRUB measures each file that it opens, also to find out
// its size (GRUB, grub-core/kern/verifiers.c), except those of the memory disk. It does not measure a
// file whose existence it tests.
func filesOf(form string) ([]File, error) {
	args := strings.Split(strings.TrimPrefix(form, "! "), " ")
	name, args := args[0], args[1:]
	last := func() string { // the last argument that is no option
		for i := len(args) - 1; i >= 0; i-- {
			if args[i] != "" && !strings.HasPrefix(args[i], "-") {
				return args[i]
			}
		}
		return ""
	}
	var out []File
	add := func(path string, format Format) {
		if path = display(path); path != "" && path != "*" && !strings.HasSuffix(path, "/*") {
			out = append(out, File{path, format})
		}
	}
	switch name {
	case "source", ".", "configfile", "normal", "extract_entries_source", "extract_entries_configfile":
		path := last()
		if strings.HasSuffix(path, unknown) {
			return nil, fmt.Errorf("the file %q is not known. Write its name", display(path))
		}
		add(path, Config)
	case "load_env", "list_env":
		path := unknown + "/grubenv"
		for i, a := range args {
			if value, ok := strings.CutPrefix(a, "--file="); ok {
				path = value
			} else if (a == "-f" || a == "--file") && i+1 < len(args) {
				path = args[i+1]
			}
		}
		add(path, Environment)
	case "[", "test":
		for i, a := range args[:max(0, len(args)-1)] {
			if a == "-s" {
				add(args[i+1], Data)
			}
		}
	case "search", "search.file":
		if name == "search.file" || slices.Contains(args, "--file") || slices.Contains(args, "-f") {
			add(last(), Data)
		}
	case "loadfont", "background_image", "devicetree", "cat", "hexdump":
		path := last()
		if name == "loadfont" && !strings.ContainsAny(path, "/(") {
			path = unknown + "/fonts/" + path + ".pf2"
		}
		add(path, Data)
	}
	return out, nil
}
