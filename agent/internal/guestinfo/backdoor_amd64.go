// SPDX-License-Identifier: Apache-2.0

package guestinfo

import (
	"encoding/binary"
	"runtime"
	"syscall"
)

// in loads the registers, reads 4 bytes from the port in DX, and stores the registers.
//
//go:noescape
func in(r *Registers)

// cpuid executes the CPUID instruction for subleaf 0.
func cpuid(leaf uint32) (ebx, ecx, edx uint32)

// Backdoor returns the hypervisor's port, or [ErrNoVMware]. It does not access the port on other
// hypervisors, where the access can end the process.
func Backdoor() (Port, error) {
	if _, ecx, _ := cpuid(1); ecx>>31 == 0 {
		return nil, ErrNoVMware
	}
	var vendor []byte
	b, c, d := cpuid(0x40000000)
	for _, r := range []uint32{b, c, d} {
		vendor = binary.LittleEndian.AppendUint32(vendor, r)
	}
	if string(vendor) != "VMwareVMware" {
		return nil, ErrNoVMware
	}
	return Access, nil
}

// Access accesses the real port once. A kernel under lockdown grants the permission to no process,
// but VMware's hypervisor still answers, because it ignores the processor's privilege level.
func Access(r Registers) Registers {
	// The kernel grants the permission to a thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if syscall.Ioperm(portNumber, 4, 1) == nil {
		defer func() { _ = syscall.Ioperm(portNumber, 4, 0) }()
	}
	in(&r)
	return r
}
