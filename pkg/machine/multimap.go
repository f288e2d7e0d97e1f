// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"iter"
	"slices"
)

// multimap is a map to several values, compact if most keys have one.
type multimap[K, V comparable] struct {
	one  map[K]V
	more map[K][]V
}

func newMultimap[K, V comparable]() multimap[K, V] {
	return multimap[K, V]{one: map[K]V{}, more: map[K][]V{}}
}

func (m multimap[K, V]) has(k K) bool {
	_, ok := m.one[k]
	return ok
}

func (m multimap[K, V]) all(k K) iter.Seq[V] {
	return func(yield func(V) bool) {
		if v, ok := m.one[k]; !ok || !yield(v) {
			return
		}
		for _, v := range m.more[k] {
			if !yield(v) {
				return
			}
		}
	}
}

func (m multimap[K, V]) add(k K, v V) {
	if _, ok := m.one[k]; ok {
		m.more[k] = append(m.more[k], v)
		return
	}
	m.one[k] = v
}

func (m multimap[K, V]) remove(k K, v V) {
	list := slices.DeleteFunc(slices.Collect(m.all(k)), func(x V) bool { return x == v })
	delete(m.one, k)
	delete(m.more, k)
	for _, x := range list {
		m.add(k, x)
	}
}
