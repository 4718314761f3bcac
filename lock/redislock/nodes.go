package redislock

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// node is one of the independent masters of a Redlock.
type node struct {
	name   string // its address where it is known, else its place among the nodes
	client redis.UniversalClient
}

// newNodes names the nodes, or tells why a lock must not be kept on them.
func newNodes(clients []redis.UniversalClient) ([]node, error) {
	if n := len(clients); n < 3 || n%2 == 0 {
		return nil, fmt.Errorf("redislock: the number of nodes is %d: must be odd and at least 3", n)
	}
	nodes := make([]node, len(clients))
	places := make(map[any]int) // of clients and addresses
	for i, client := range clients {
		nodes[i] = node{name: fmt.Sprintf("node %d", i), client: client}
		var wrong string
		same := any(client)
		switch client := client.(type) {
		case nil:
			return nil, fmt.Errorf("redislock: node %d is nil: must be a Redis client", i)
		case *redis.ClusterClient:
			wrong = "a Cluster"
		case *redis.Ring:
			wrong = "a Ring"
		case *redis.Client:
			addr := client.Options().Addr
			if addr == "FailoverClient" { // that is what go-redis calls it
				wrong = "whatever a Sentinel makes the master"
				break
			}
			nodes[i].name, same = addr, addr
		}
		if wrong != "" {
			return nil, fmt.Errorf("redislock: node %d is a client of %s: must be of one master without replicas", i, wrong)
		}
		if before, ok := places[same]; ok {
			return nil, fmt.Errorf("redislock: nodes %d and %d are the same, %s: must be independent masters", before, i, nodes[i].name)
		}
		places[same] = i
	}
	return nodes, nil
}

// answer is what became of a call to a node.
type answer struct {
	node   node
	yes    bool
	left   time.Duration // of a vote that another owner has
	holder string        // that owner
	err    error         // why there is no answer
}

// poll is what the nodes answered.
type poll struct {
	yes, no, silent []answer
	left            int // of the silent, those whose calls are still under way
}

func (p *poll) add(a answer) {
	switch {
	case a.err != nil:
		a.err = fmt.Errorf("%s: %w", a.node.name, a.err)
		p.silent = append(p.silent, a)
	case a.yes:
		p.yes = append(p.yes, a)
	default:
		p.no = append(p.no, a)
	}
}

func nodesOf(answers []answer) []node {
	nodes := make([]node, len(answers))
	for i, a := range answers {
		nodes[i] = a.node
	}
	return nodes
}

// ask asks nodes, all at once, and waits for their answers until the limit.
func (r *Redlock) ask(ctx context.Context, nodes []node, f func(context.Context, node) answer) poll {
	limit := r.limit(ctx)
	return r.collect(ctx, limit, r.send(ctx, limit, nodes, f), nodes)
}

// limit is how long nodes are waited for: of what is left of ctx a half at most, so that a second round has time too. A
// ctx that is done does not limit what cleans up after it.
func (r *Redlock) limit(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok && ctx.Err() == nil {
		return min(r.opts.NodeTimeout, time.Until(deadline)/2)
	}
	return r.opts.NodeTimeout
}

// send calls f for each node, which calls waits for; the caller is among them. The channel never blocks f.
func (r *Redlock) send(ctx context.Context, limit time.Duration, nodes []node, f func(context.Context, node) answer) <-chan answer {
	answers := make(chan answer, len(nodes))
	for _, n := range nodes {
		r.calls.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			a := f(ctx, n)
			a.node = n
			answers <- a
		})
	}
	return answers
}

// collect waits for the answers of nodes until the limit, or the end of ctx. go-redis does not: a read that has begun ends
// with the client's own timeout.
func (*Redlock) collect(ctx context.Context, limit time.Duration, answers <-chan answer, nodes []node) poll {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	var p poll
	pending := make(map[string]node, len(nodes))
	for _, n := range nodes {
		pending[n.name] = n
	}
	var why error
	for len(pending) > 0 && why == nil {
		select {
		case a := <-answers:
			delete(pending, a.node.name)
			p.add(a)
		case <-timer.C:
			why = fmt.Errorf("no answer within %v", limit)
		case <-ctx.Done():
			why = ctx.Err()
		}
	}
	p.left = len(pending)
	for _, n := range pending {
		p.add(answer{node: n, err: why})
	}
	return p
}
