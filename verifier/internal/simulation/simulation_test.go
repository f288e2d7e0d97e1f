// SPDX-License-Identifier: Apache-2.0

//go:debug randseednop=0

package simulation

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	mathrand "math/rand"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	utilrand "k8s.io/apimachinery/pkg/util/rand"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
)

var (
	first   = flag.Uint64("simulation.first", 1, "the first seed")
	seeds   = flag.Uint64("simulation.seeds", 20, "the number of seeds")
	enough  = flag.Int("simulation.enough", 0, "the number of seeds with a violation after which to stop; 0: never")
	verbose = flag.Bool("simulation.trace", false, "print the trace and the logs of the processes")
	exact   = flag.Bool("simulation.exact", false, "run each seed in a process of its own, which a second run repeats")
	single  = flag.Bool("simulation.single", false, "this is such a process")
)

// run runs one seed in a bubble and returns the number of configs that the gates served.
func run(t *testing.T, f *fixtures, seed uint64) (served int32) {
	t.Helper()
	log, print := slog.New(slog.DiscardHandler), (func(string))(nil)
	if *verbose {
		log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
		print = func(line string) { fmt.Fprint(os.Stderr, line) }
	}
	kube.SetLogger(log)
	defer watchdog()()
	synctest.Test(t, func(t *testing.T) {
		cryptotest.SetGlobalRandom(t, seed)
		mathrand.Seed(int64(seed)) //nolint:staticcheck // SA1019: the jitter of client-go has no other seed
		utilrand.Seed(int64(seed))
		w, err := newWorld(f, seed, log, print)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		violations, configs, err := w.live(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range violations {
			t.Error(v)
		}
		served = configs
	})
	return served
}

// TestSimulation runs each seed and checks the invariants of the ledger.
func TestSimulation(t *testing.T) {
	if *single {
		if n, err := threads(); err != nil || n > alike {
			fmt.Println(n, "threads", err)
			os.Exit(another)
		}
	} else {
		defer debug.SetGCPercent(debug.SetGCPercent(800)) // a run has little that lives and much garbage
	}
	// The second handler pauses after the time of the last error, which may be of another bubble.
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	cryptotest.SetGlobalRandom(t, 0)
	f, err := newFixtures()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("POD_NAME", "") // each controller sets its own
	var served int32
	violated := 0
	for seed := *first; seed < *first+*seeds && (*enough == 0 || violated < *enough); seed++ {
		ok := t.Run(fmt.Sprint(seed), func(t *testing.T) {
			if *exact {
				repeatable(t, seed)
				return
			}
			began := time.Now()
			served += run(t, f, seed)
			t.Logf("seed %d took %v", seed, time.Since(began))
		})
		if !ok {
			violated++
		}
	}
	if served == 0 && *seeds > 1 && !*exact && !t.Failed() {
		t.Error("no machine got a config")
	}
}

// watchdog reports a run that does not end within five minutes. A goroutine of a bubble that waits for a lock, or for a
// channel from outside, stops the time of its bubble.
func watchdog() (stop func()) {
	ended := make(chan struct{})
	go func() {
		select {
		case <-ended:
		case <-time.After(5 * time.Minute):
			stacks := make([]byte, 8<<20)
			stacks = stacks[:runtime.Stack(stacks, true)]
			for _, one := range strings.Split(string(stacks), "\n\n") {
				if strings.Contains(one, "synctest bubble") && !strings.Contains(one, "durable") {
					fmt.Fprintln(os.Stderr, one)
				}
			}
			panic("a run does not end; its goroutines that are not durably blocked are above")
		}
	}()
	return func() { close(ended) }
}
