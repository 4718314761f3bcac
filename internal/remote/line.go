package remote

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate/singleflight"
)

const (
	// lineAfter is how many callers have to go along, within a tenth of the timeout, before
	// they get a line.
	lineAfter = 16
	// lineAge is how long a connection is a line before the pool has it again, which looks
	// after its age and its notifications.
	lineAge = time.Second
	// smallPool is the size of a pool that has no connection to spare.
	smallPool = 8
)

// line is a connection that callers who go along hand on from one to the next, past the
// pool of the client. To take one out of the pool and put it back takes a tenth of a GET,
// as the pool asks the system each time whether the server has closed it. Only one caller
// at a time has the line.
type line struct {
	conn  *redis.Conn
	taken time.Duration // when, by the store's clock
	used  time.Duration // when last
}

// onceGet is a GET over a line. Sent again, it would go over the same connection.
type onceGet struct{ *redis.StringCmd }

// NoRetry implements redis.Cmder.
func (onceGet) NoRetry() bool { return true }

// get sends a GET over the line.
func (l *line) get(ctx context.Context, key string) ([]byte, error) {
	cmd := redis.NewStringCmd(ctx, "get", key)
	return singleflight.Protect(func() ([]byte, error) {
		_ = l.conn.Process(ctx, onceGet{cmd}) // the command has the error too
		return cmd.Bytes()
	})
}

// lender is the client that lines may be taken from, nil for none. A Cluster's would not
// follow a key that has moved.
func lender(client redis.UniversalClient) *redis.Client {
	single, ok := client.(*redis.Client)
	if !ok {
		return nil
	}
	o := single.Options()
	if o.PoolSize <= smallPool || o.MaxActiveConns > 0 && o.MaxActiveConns <= smallPool {
		return nil
	}
	return single
}

// close gives the connection back to the pool, which drops it if a command has failed. A
// nil line has none.
func (l *line) close() {
	if l != nil && l.conn != nil {
		_ = l.conn.Close() // only of a line that is closed already
	}
}
