// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package tpm2_test

import "github.com/google/go-tpm-tools/simulator"

func startSimulator() (simulated, error) { return simulator.Get() }
