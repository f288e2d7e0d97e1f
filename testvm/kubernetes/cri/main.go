// Command cri answers the kubelet as a container runtime that has nothing to run:
// Kubernetes' own fake of the CRI, on the unix socket that it is given. A kubelet
// registers its Node with no less.
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
