// SPDX-License-Identifier: Apache-2.0

// Package delivery passes a changed pointer config to an unpatched Ignition and removes it
// afterwards.
//
// Everything is in the agent's own folder (/run/mcs-attest, mode 0700):
//
//	ignition/user.ign         the pointer config with the token, mode 0600
//	ignition/base.d           a link to Ignition's own folder of base configs
//	ignition-system/...       the same for Ignition before 2.27, which reads only one folder
//	ignition.env              read only by a drop-in of ignition-fetch.service
//	cmdline                   the kernel command line without ignition.config.*
//
// Ignition prefers a user.ign to the platform's user data, and a kernel argument to both. Two
// environment variables name the folder of user.ign. Ignition 2.27 and later reads
// IGNITION_SYSTEM_RUNTIME_CONFIG_DIR first; earlier versions read only IGNITION_SYSTEM_CONFIG_DIR.
// The same variables also set the folders of base configs, so links in these folders lead to the
// base configs that Ignition would find without the variables.
//
// Every file is written atomically. An empty user.ign would make Ignition provision an empty
// machine without an error.
package delivery

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/mcs-attest/mcs-attest/agent/internal/paths"
)

const (
	runtimeDir = "ignition"
	systemDir  = "ignition-system"
	userIgn    = "user.ign"
	envFile    = "ignition.env"
	cmdline    = "cmdline"
)

// Delivery is what Ignition will read. MaskedCmdline is empty if the kernel command line names no
// config.
type Delivery struct {
	Pointer       []byte
	MaskedCmdline string
}

// Write stores d. It writes ignition.env last, because Ignition uses the other files only if that
// file exists.
func Write(p paths.Paths, d Delivery) error {
	if len(d.Pointer) == 0 {
		return errors.New("cannot deliver an empty config")
	}
	if err := Prepare(p); err != nil {
		return err
	}
	for _, dir := range []struct{ own, standard string }{
		{runtimeDir, p.IgnitionRuntime},
		{systemDir, p.IgnitionSystem},
	} {
		if err := os.MkdirAll(p.Own(dir.own), 0o700); err != nil {
			return fmt.Errorf("delivering the config: %w", err)
		}
		for _, base := range []string{"base.d", "base.platform.d"} {
			// Ignition treats a dangling link like a missing folder.
			if err := link(filepath.Join(dir.standard, base), p.Own(dir.own, base)); err != nil {
				return fmt.Errorf("delivering the config: %w", err)
			}
		}
	}
	if err := WriteFile(p.Own(runtimeDir, userIgn), d.Pointer); err != nil {
		return err
	}
	if err := link(p.Own(runtimeDir, userIgn), p.Own(systemDir, userIgn)); err != nil {
		return fmt.Errorf("delivering the config: %w", err)
	}
	if d.MaskedCmdline != "" {
		if err := WriteFile(p.Own(cmdline), []byte(d.MaskedCmdline)); err != nil {
			return err
		}
	}
	env := fmt.Sprintf("IGNITION_SYSTEM_RUNTIME_CONFIG_DIR=%s\nIGNITION_SYSTEM_CONFIG_DIR=%s\n", p.Own(runtimeDir),
		p.Own(systemDir))
	return WriteFile(p.Own(envFile), []byte(env))
}

// Prepare creates the agent's own folder, with access only for root.
func Prepare(p paths.Paths) error {
	err := os.MkdirAll(p.Run, 0o700)
	if err == nil {
		err = os.Chmod(p.Run, 0o700)
	}
	if err != nil {
		return fmt.Errorf("creating the agent's folder: %w", err)
	}
	return nil
}

// Remove deletes what Write created. A missing file is not an error.
func Remove(p paths.Paths) error {
	var errs []error
	for _, name := range []string{envFile, cmdline, runtimeDir, systemDir} {
		errs = append(errs, os.RemoveAll(p.Own(name)))
	}
	return errors.Join(errs...)
}

// Delivered returns the config that Write stored, or nil if there is none.
func Delivered(p paths.Paths) ([]byte, error) {
	raw, err := os.ReadFile(p.Own(runtimeDir, userIgn))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return raw, err
}

// WriteFile writes a file with mode 0600 atomically: it writes a temporary file in the same folder
// and renames it.
func WriteFile(file string, content []byte) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("writing %s: %w", file, err)
		}
	}()
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(file), ".tmp-*") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err := errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return os.Rename(f.Name(), file)
}

func link(target, name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Symlink(target, name)
}
