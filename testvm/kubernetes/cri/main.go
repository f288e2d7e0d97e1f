// SPDX-License-Identifier: Apache-2.0

// Command cri is a container runtime for the kubelet that runs no containers: Kubernetes' own fake
// of the CRI, on the given unix socket. A kubelet needs a runtime to register its Node.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/cri-client/pkg/fake"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: cri /path/of/socket")
		os.Exit(2)
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, os.Interrupt, syscall.SIGTERM)
	runtime := fake.NewFakeRemoteRuntime()
	if err := runtime.Start("unix://" + os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "cri:", err)
		os.Exit(1)
	}
	<-ended
	runtime.Stop()
}
