// SPDX-License-Identifier: Apache-2.0

// Package fipsmode turns on FIPS 140 mode in Go's cryptographic module if the kernel runs in FIPS mode, as the kernel
// argument fips=1 requests. Only the main package uses it.
//
// Go reads the mode only when a program starts, from the environment variable GODEBUG. So [FollowKernel] starts the
// program again, in the same process.
package fipsmode

import (
	"bytes"
	"crypto/fips140"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
)

// Kernel is the file in which the kernel reports its mode.
const Kernel = "/proc/sys/crypto/fips_enabled"

const variable = "GODEBUG"

// FollowKernel returns if the program has the mode of the kernel, which the given file reports. Otherwise it starts the
// program again with the same arguments. A GODEBUG that sets fips140 takes precedence.
func FollowKernel(file string) error {
	raw, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // a kernel without FIPS mode
	}
	if err != nil {
		return fmt.Errorf("read the kernel's FIPS mode: %w", err)
	}
	settings := os.Getenv(variable)
	if !bytes.Equal(bytes.TrimSpace(raw), []byte("1")) || fips140.Enabled() || strings.Contains(settings, "fips140=") {
		return nil
	}
	program, err := os.Executable()
	if err == nil {
		err = os.Setenv(variable, strings.TrimPrefix(settings+",fips140=on", ","))
	}
	if err == nil {
		err = syscall.Exec(program, os.Args, os.Environ())
	}
	return fmt.Errorf("start again in FIPS 140 mode: %w", err)
}
