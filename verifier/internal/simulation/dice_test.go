// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
)

// dice has all randomness of a run. Each use has a name. The result depends on the seed, the name, and how often the
// name was used before. It does not depend on the order in which different names are used.
type dice struct {
	seed uint64

	mu   sync.Mutex
	used map[string]uint64
}

func newDice(seed uint64) *dice { return &dice{seed: seed, used: map[string]uint64{}} }

// roll returns a generator for one use of a name.
func (d *dice) roll(name string) *rand.Rand {
	d.mu.Lock()
	n := d.used[name]
	d.used[name]++
	d.mu.Unlock()
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %d %s", d.seed, n, name))
	return rand.New(rand.NewPCG(binary.BigEndian.Uint64(sum[:]), binary.BigEndian.Uint64(sum[8:])))
}
