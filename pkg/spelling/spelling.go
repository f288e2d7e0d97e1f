// SPDX-License-Identifier: Apache-2.0

// Package spelling finds the words that a misspelled word probably means. Both command lines use it
// for the names of commands and flags.
package spelling

import "strings"

// maxDistance is how many letters may differ. Cobra uses the same number.
const maxDistance = 2

// Near returns the words that differ from word in at most two letters, or that begin with it. It
// returns none if word is too short.
func Near(word string, words []string) []string {
	var near []string
	for _, w := range words {
		if len(word) > 1 && strings.HasPrefix(w, word) || len(word) > maxDistance && distance(word, w) <= maxDistance {
			near = append(near, w)
		}
	}
	return near
}

// distance returns the Levenshtein distance of two words.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
