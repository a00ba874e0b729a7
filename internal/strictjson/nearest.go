package strictjson

import (
	"fmt"
	"strings"
)

// Nearest returns " (did you mean x?)" for the known name that is nearest to name, or "" if none is
// near.
func Nearest(name string, known []string) string {
	// If more than a third of the letters are wrong, it is a different word.
	best, least := "", min(len(name)/3+1, 4)
	for _, k := range known {
		if max(len(k)-len(name), len(name)-len(k)) >= least {
			continue
		}
		if d := distance(strings.ToLower(name), strings.ToLower(k)); d < least {
			best, least = k, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(" (did you mean %s?)", best)
}

// distance returns how many letters have to be inserted, deleted, replaced or swapped with the next
// one to turn a into b.
func distance(a, b string) int {
	before, row := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		next := make([]int, len(b)+1)
		next[0] = i + 1
		for j := range len(b) {
			cost := row[j]
			if a[i] != b[j] {
				cost++
			}
			next[j+1] = min(cost, row[j+1]+1, next[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				next[j+1] = min(next[j+1], before[j-1]+1)
			}
		}
		before, row = row, next
	}
	return row[len(b)]
}
