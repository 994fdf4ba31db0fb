package checkapi

import "strings"

// nearest returns the name that may have been meant, or "" if none is near.
func nearest(written string, names []string) string {
	plain := func(s string) string { return strings.ToLower(strings.NewReplacer("_", "", "-", "").Replace(s)) }
	if len(written) > 64 {
		return ""
	}
	written = plain(written)
	best, least := "", 3 // at most two letters differ
	for _, name := range names {
		if d := distance(written, plain(name)); d < least && d <= len(name)/2 {
			best, least = name, d
		}
	}
	return best
}

// distance is how many letters must be inserted, removed or replaced to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
