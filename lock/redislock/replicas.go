package redislock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate/lock"
)

// DefaultReplicaTimeout is how long Options.Replicas are waited for, unless the options say otherwise.
const DefaultReplicaTimeout = 100 * time.Millisecond

// ErrNotReplicated says that the master has the lock, or its renewal, but fewer than Options.Replicas acknowledged it
// within ReplicaTimeout. It is an outcome as unknown as that of a master that does not answer.
var ErrNotReplicated = errors.New("redislock: too few replicas acknowledged")

// validateReplicas tells what is wrong with the options, or with client for them.
func validateReplicas(client redis.UniversalClient, opts Options) error {
	switch {
	case opts.Replicas < 0:
		return fmt.Errorf("redislock: Replicas is %d: must be positive, or 0 for none", opts.Replicas)
	case opts.ReplicaTimeout < 0 || opts.ReplicaTimeout > 0 && opts.ReplicaTimeout < time.Millisecond:
		return fmt.Errorf("redislock: ReplicaTimeout is %v: must be at least %v, or 0 for the default of %v", opts.ReplicaTimeout, time.Millisecond, DefaultReplicaTimeout)
	case opts.Replicas == 0:
		return nil
	}
	var readTimeout time.Duration // none when not positive
	switch client := client.(type) {
	case *redis.Client:
		readTimeout = client.Options().ReadTimeout
	case *redis.ClusterClient:
		readTimeout = client.Options().ReadTimeout
	default:
		return fmt.Errorf("redislock: Replicas is %d with a %T: must be 0, or the client a *redis.Client or *redis.ClusterClient", opts.Replicas, client)
	}
	if timeout := opts.replicaTimeout(); readTimeout > 0 && readTimeout <= timeout {
		return fmt.Errorf("redislock: ReplicaTimeout is %v: must be below the client's ReadTimeout, %v", timeout, readTimeout)
	}
	return nil
}

func (o Options) replicaTimeout() time.Duration {
	if o.ReplicaTimeout == 0 {
		return DefaultReplicaTimeout
	}
	return o.ReplicaTimeout
}

// replicated lets write send something, and looks then, if that worked and Options.Replicas asks for it, how many replicas
// have it.
func (b *Backend) replicated(ctx context.Context, key string, write func(sender) error) error {
	if b.opts.Replicas == 0 {
		return write(again(b.client))
	}
	master, err := b.master(ctx, key)
	if err != nil {
		return err
	}
	timeout := b.opts.replicaTimeout()
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(deadline)/2) // the answer is to come in time
	}
	timeout = max(timeout, time.Millisecond) // 0 would wait for ever

	// WAIT is about what its own connection has written, so it goes into one pipeline with that, which go-redis must not
	// send again over another. It waits after a refusal as well: only another round trip could spare that.
	var wait *redis.Cmd
	err = write(func(ctx context.Context, cmd *redis.Cmd) error {
		wait = redis.NewCmd(ctx, "wait", b.opts.Replicas, timeout.Milliseconds())
		pipe := master.Pipeline()
		_ = pipe.Process(ctx, cmd)
		_ = pipe.Process(ctx, onceCmd{wait})
		_, _ = pipe.Exec(ctx) // each command keeps its error
		return cmd.Err()
	})
	if cluster, ok := b.client.(*redis.ClusterClient); ok && err != nil && !errors.Is(err, lock.ErrNotAcquired) && !errors.Is(err, lock.ErrNotHeld) {
		cluster.ReloadState(ctx) // the slot may have moved, which the cluster client does not notice on this way
	}
	if err != nil {
		return err
	}
	n, err := wait.Int()
	if err != nil {
		return err
	}
	if n < b.opts.Replicas {
		return fmt.Errorf("%w: %d of %d within %v", ErrNotReplicated, n, b.opts.Replicas, timeout)
	}
	return nil
}

// master is a client of the server that key is written to. A ClusterClient would send WAIT, which names no key, to any.
func (b *Backend) master(ctx context.Context, key string) (*redis.Client, error) {
	switch client := b.client.(type) {
	case *redis.Client:
		return client, nil
	case *redis.ClusterClient:
		return client.MasterForKey(ctx, key)
	}
	return nil, fmt.Errorf("redislock: the client is a %T: must be a *redis.Client or *redis.ClusterClient", b.client) // refused by New
}
