package lock

import (
	"context"
	"errors"
	"slices"
)

// Leases are several leases that are held together, as All returns them.
type Leases []*Lease

// All locks every name, each once, and one after the other in the order of their bytes: two callers whose names overlap
// never wait for each other in a circle, as long as neither holds one of a higher name while it calls. When one lock
// cannot be had, those before it are unlocked, and the error is that of locker. ctx bounds the whole wait.
func All(ctx context.Context, locker Locker, names ...string) (Leases, error) {
	names = slices.Clone(names)
	slices.Sort(names)
	var all Leases
	for _, name := range slices.Compact(names) {
		lease, err := locker.Lock(ctx, name)
		if err != nil {
			return nil, errors.Join(err, all.Unlock(ctx))
		}
		all = append(all, lease)
	}
	return all, nil
}

// Err is nil while all leases last, else the Err of the first that does not.
func (all Leases) Err() error {
	for _, lease := range all {
		if err := lease.Err(); err != nil {
			return err
		}
	}
	return nil
}

// Context returns a child of parent that is cancelled when one of the leases ends, with its Err as the cause.
func (all Leases) Context(parent context.Context) context.Context {
	if len(all) == 0 {
		return parent
	}
	return all[1:].Context(all[0].Context(parent))
}

// Unlock unlocks all leases, the last first, whatever comes of each. The error joins theirs.
func (all Leases) Unlock(ctx context.Context) error {
	var errs []error
	for _, lease := range slices.Backward(all) {
		errs = append(errs, lease.Unlock(ctx))
	}
	return errors.Join(errs...)
}
