// Package herdgate is a read-through cache that keeps the herd off the database:
// when a hot key expires, exactly one caller in the whole fleet loads it, and
// everybody else gets the old value at once or waits briefly for the new one.
//
//	gate, err := herdgate.Open(ctx, herdgate.Options{Redis: rdb, Namespace: "shop"})
//	products, err := herdgate.New(gate, "product", loadProduct, herdgate.Policy{
//		TTL:   time.Minute,
//		Stale: 10 * time.Minute,
//	})
//	p, err := products.Get(ctx, "42")
//
// # One Get
//
// A call first looks into the local tier, decoded values of this process. Then it
// joins the flight of its key, or starts one: one flight a key and process, whose
// work belongs to no caller, so that nobody's cancelled context stops it for the
// others. The flight reads Redis. If there is no value to serve it asks for the
// rebuild lease; who gets it runs the loader and commits the value, and the others
// are woken. See read.go, rebuild.go and wait.go, one stage a file.
//
// # Words
//
// An entry is fresh until its TTL has passed, then stale until the end of its Stale
// window, then expired. A stale entry is served at once while one caller in the
// fleet refreshes it; an expired or missing one is waited for. A change is a
// [Cache.Set], [Cache.Delete] or [Cache.Expire]; once it has returned nil, no load
// that began before it can store its value.
//
// A flight is the work for one key in one process, shared by the callers that wait
// for it. A lease is the held rebuild lock: the only right to commit, that is, to
// store what was loaded. The bus carries invalidations (the messages of changes) and
// wake-ups between the instances; a gap is the time in which it may have lost some,
// and in which every local value is checked with Redis. A call is degraded when
// Redis does not answer it.
//
// # Values are shared
//
// All callers of a process that get the same entry get the same V. If V is or holds
// a pointer, map or slice, treat it as read-only, or give the cache a [WithClone].
package herdgate
