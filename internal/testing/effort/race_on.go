//go:build race

package effort

const isUnderRace = true
