package singleflight

// Finished tells whether the flight has published its result.
func (f *Flight[K, S, V]) Finished() bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}
