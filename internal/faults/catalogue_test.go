package faults

import "slices"

// The catalogue, by families.
var catalogue = slices.Concat(down, slow, refusing, lost, crowded, secured, timed)
