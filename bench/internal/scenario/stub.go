package scenario

// IsSimulation reports whether this process was started to simulate a fleet.
func IsSimulation() bool { return false }

// Simulate runs the simulation and ends the process.
func Simulate() {}
