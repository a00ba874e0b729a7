//go:build race

package guard

// raceEnabled: the race detector's own memory says nothing about ours.
const raceEnabled = true
