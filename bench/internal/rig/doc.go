// Package rig is the machinery of the suite: redis-server processes, worker
// processes, the origin that they load from, counted commands and latencies. It
// knows neither peers nor scenarios.
package rig
