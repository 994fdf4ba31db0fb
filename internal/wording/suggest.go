package wording

import (
	"fmt"
	"strings"
)

// Suggest returns which of the known names was probably meant by another one, as "did you mean
// rate?", or what is known, as "there are a and b".
func Suggest(name string, known []string) string {
	best, least := "", min(max(1, len(name)/3), 3)+1
	var longer []string
	for _, k := range known {
		if d := Distance(name, k); d < least && d < len(k) {
			best, least = k, d
		}
		if len(name) >= 3 && strings.HasPrefix(k, name) {
			longer = append(longer, k)
		}
	}
	switch {
	case best != "":
		return fmt.Sprintf("did you mean %s?", best)
	case len(longer) == 1:
		return fmt.Sprintf("did you mean %s?", longer[0])
	case len(known) == 0:
		return "there are none"
	case len(known) == 1:
		return "there is " + known[0]
	case len(known) > 20:
		return fmt.Sprintf("there are %d, such as %s", len(known), strings.Join(known[:3], ", "))
	}
	return "there are " + List(known, "and")
}

// Distance returns the edit distance of a and b, up to about 3. A swap of two neighbors is one
// edit.
func Distance(a, b string) int {
	if len(a) > len(b)+3 || len(b) > len(a)+3 || len(a) > 64 {
		return 4
	}
	a, b = strings.ToLower(a), strings.ToLower(b)
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
		for j := range len(b) {
			if i == 0 {
				rows[i][j+1] = j + 1
				continue
			}
			change := rows[i-1][j]
			if a[i-1] != b[j] {
				change++
			}
			rows[i][j+1] = min(change, rows[i][j]+1, rows[i-1][j+1]+1)
			if i > 1 && j > 0 && a[i-1] == b[j-1] && a[i-2] == b[j] {
				rows[i][j+1] = min(rows[i][j+1], rows[i-2][j-1]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
