//go:build !amd64

package guestinfo

// Backdoor is not there on this architecture; Ignition has none either.
func Backdoor() (Port, error) { return nil, ErrNoVMware }
