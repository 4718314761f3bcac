package rig

import (
	"context"
	"errors"
	"net"
	"net/rpc"
	"sync"
	"time"
)

// Origin is where the workers load from: it lives in the parent, counts what is
// loaded, and says what the value is when a load begins.
type Origin struct {
	listener net.Listener
	conns    sync.WaitGroup

	mu    sync.Mutex
	stock int32  // protected by mu
	loads []Load // protected by mu
}

// Load is a load that has begun.
type Load struct {
	Number int64
	Stock  int32
	By     string // the worker
	Key    string
	At     time.Time
}

// StartOrigin starts an origin that holds a stock of 1.
func StartOrigin(ctx context.Context) (*Origin, error) {
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", loopback(0))
	if err != nil {
		return nil, err
	}
	o := &Origin{listener: listener, stock: 1}
	server := rpc.NewServer()
	if err := server.RegisterName("Origin", &OriginService{o}); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	o.conns.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			o.conns.Go(func() { server.ServeConn(conn) })
		}
	})
	return o, nil
}

// Addr is where workers reach it.
func (o *Origin) Addr() string { return o.listener.Addr().String() }

// Close ends it. The workers, whose connections it waits for, are closed before.
func (o *Origin) Close() {
	_ = o.listener.Close()
	o.conns.Wait()
}

// Change sets what loads that begin from now on find.
func (o *Origin) Change(stock int32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stock = stock
}

// Loads returns all loads that have begun since the last Reset.
func (o *Origin) Loads() []Load {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]Load(nil), o.loads...)
}

// Reset forgets the loads and starts from a stock of 1 again.
func (o *Origin) Reset() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.loads, o.stock = nil, 1
}

func (o *Origin) begin(by, key string) Load {
	o.mu.Lock()
	defer o.mu.Unlock()
	l := Load{Number: int64(len(o.loads)) + 1, Stock: o.stock, By: by, Key: key, At: time.Now()}
	o.loads = append(o.loads, l)
	return l
}

// OriginService is the origin as net/rpc wants it.
type OriginService struct{ o *Origin }

// LoadRequest is what a worker sends when a load begins.
type LoadRequest struct{ By, Key string }

// Begin counts a load and tells what it will return.
func (s *OriginService) Begin(r LoadRequest, l *Load) error {
	*l = s.o.begin(r.By, r.Key)
	return nil
}

// OriginClient is a worker's connection to the origin.
type OriginClient struct {
	conn *rpc.Client
	by   string
}

// DialOrigin connects the worker called by.
func DialOrigin(addr, by string) (*OriginClient, error) {
	conn, err := rpc.Dial("tcp", addr)
	return &OriginClient{conn: conn, by: by}, err
}

// Begin tells the origin that a load begins.
func (c *OriginClient) Begin(ctx context.Context, key string) (Load, error) {
	var l Load
	call := c.conn.Go("Origin.Begin", LoadRequest{By: c.by, Key: key}, &l, make(chan *rpc.Call, 1))
	select {
	case <-call.Done:
		return l, call.Error
	case <-ctx.Done():
		return l, context.Cause(ctx)
	}
}
