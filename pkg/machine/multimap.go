// SPDX-License-Identifier: Apache-2.0

package machine

import "slices"

// multimap is a map to several values. The zero value is empty.
type multimap[K, V comparable] map[K][]V

// set adds a value of a key, or removes it.
func (m *multimap[K, V]) set(k K, v V, present bool) {
	if *m == nil {
		*m = multimap[K, V]{}
	}
	if present {
		(*m)[k] = append((*m)[k], v)
	} else if left := slices.DeleteFunc((*m)[k], func(x V) bool { return x == v }); len(left) > 0 {
		(*m)[k] = left
	} else {
		delete(*m, k)
	}
}
