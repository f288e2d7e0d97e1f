package guestinfo

import (
	"encoding/binary"
	"runtime"
	"syscall"
)

// in loads the registers, reads 4 bytes from the port in DX, and stores the
// registers.
//
//go:noescape
func in(r *Registers)

// cpuid is the instruction of that name, for subleaf 0.
func cpuid(leaf uint32) (ebx, ecx, edx uint32)

// Backdoor is the hypervisor's port, or [ErrNoVMware]. No other hypervisor is
// touched: reading that port elsewhere can end the process.
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

// Access is one access of the real port. Where a kernel under lockdown grants
// none to anybody, VMware's hypervisor still answers: it does not look at the
// processor's privilege.
func Access(r Registers) Registers {
	// The permission is the thread's.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if syscall.Ioperm(portNumber, 4, 1) == nil {
		defer func() { _ = syscall.Ioperm(portNumber, 4, 0) }()
	}
	in(&r)
	return r
}
