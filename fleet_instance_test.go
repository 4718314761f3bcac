package herdgate_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/rpc"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/herdgate/herdgate"
	"github.com/herdgate/herdgate/codec"
	"github.com/herdgate/herdgate/internal/testutil"
	"github.com/herdgate/herdgate/lock"
	"github.com/herdgate/herdgate/lock/memlock"
)

const (
	instanceRole   = "instance"
	fleetNamespace = "fleet"
	plainKey       = "plain" // an encoded Item, for who reads Redis without the library

	minLockTTL = 2 * time.Second // of an instance's locker: the least that etcd keeps
)

// instanceSetup is what an instance is started with.
type instanceSetup struct {
	Name     string
	Redis    string // address
	Source   string // address
	Locks    string // the namespace of its locker's, "" if it has none
	Policy   herdgate.Policy
	Stubborn bool // its loader ignores the end of its context
	Many     bool // its loader loads many keys in one call
	Generous bool // its locker gives it each lock, whoever else has it
}

// service is an instance of a service that uses the library, alone in its process.
// The test drives it by the exported methods.
type service struct {
	instanceSetup

	ctx    context.Context // of the process; net/rpc hands its methods none
	rdb    *redis.Client
	sent   commandCounter
	source *rpc.Client
	cache  *herdgate.Cache[Item]
}

// runInstance is the role of an instance's process. It says its address when it is
// ready, and serves one test until that hangs up or asks it to stop.
func runInstance(ctx context.Context, args testutil.Args) (err error) {
	s := &service{ctx: ctx}
	if err := json.Unmarshal([]byte(args["setup"]), &s.instanceSetup); err != nil {
		return err
	}
	if s.source, err = rpc.Dial("tcp", s.Source); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.source.Close()) }()
	s.rdb = redis.NewClient(&redis.Options{Addr: s.Redis})
	defer func() { err = errors.Join(err, s.rdb.Close()) }()
	s.rdb.AddHook(&s.sent)
	options := herdgate.Options{
		Redis:     s.rdb,
		Namespace: fleetNamespace,
		// A crowd of processes on few cores is no Redis that is out.
		RedisTimeout: 2 * time.Second,
	}
	if s.Locks != "" || s.Generous {
		var locks lock.Backend = memlock.New() // that nobody else knows of
		if !s.Generous {
			shared, closeLocks, err := openLocks(realLocks(), s.Locks)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, closeLocks()) }()
			locks = shared
		}
		engine, err := lock.New(locks, lock.Options{TTL: max(minLockTTL, s.Policy.LockTTL)})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, engine.Close(context.WithoutCancel(ctx))) }()
		options.Locker = engine
	}
	gate, err := herdgate.Open(ctx, options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, gate.Close(context.WithoutCancel(ctx))) }()
	if s.Many {
		s.cache, err = herdgate.NewLoader(gate, "things", herdgate.BatchLoaderFunc[Item](s.loadMany), s.Policy)
	} else {
		s.cache, err = herdgate.New(gate, "things", s.load, s.Policy)
	}
	if err != nil {
		return err
	}
	return s.serve()
}

func (s *service) serve() error {
	server := rpc.NewServer()
	if err := server.RegisterName("Instance", s); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	stopListening := context.AfterFunc(s.ctx, func() { _ = listener.Close() })
	defer stopListening()
	if err := testutil.Emit(listener.Addr().String()); err != nil {
		return err
	}
	conn, err := listener.Accept()
	if err != nil {
		return err
	}
	stopServing := context.AfterFunc(s.ctx, func() { _ = conn.Close() })
	defer stopServing()
	server.ServeConn(conn)
	return nil
}

// load is the loader of the cache.
func (s *service) load(ctx context.Context, _ string) (Item, error) {
	var item Item
	call := s.source.Go("Source.Load", s.Name, &item, make(chan *rpc.Call, 1))
	if s.Stubborn {
		ctx = context.WithoutCancel(ctx)
	}
	select {
	case <-call.Done:
		return item, call.Error
	case <-ctx.Done():
		return Item{}, context.Cause(ctx)
	}
}

// Answers are what a herd of callers got.
type Answers struct {
	Values  map[Item]int
	Errors  map[string]int // by kind, or text
	Slowest time.Duration  // of the calls
	Last    time.Time      // when the last of them returned
}

// Get calls Get for as many callers at once.
func (s *service) Get(callers int, a *Answers) error {
	*a = Answers{Values: map[Item]int{}, Errors: map[string]int{}}
	var mu sync.Mutex // protects a
	var herd sync.WaitGroup
	for range callers {
		herd.Go(func() {
			began := time.Now()
			item, err := s.cache.Get(s.ctx, fleetKey)
			ended := time.Now()
			mu.Lock()
			defer mu.Unlock()
			a.add(item, err, began, ended)
		})
	}
	herd.Wait()
	return nil
}

func (a *Answers) add(item Item, err error, began, ended time.Time) {
	if err != nil {
		a.Errors[errorKind(err)]++
	} else {
		a.Values[item]++
	}
	a.Slowest = max(a.Slowest, ended.Sub(began))
	if ended.After(a.Last) {
		a.Last = ended
	}
}

func errorKind(err error) string {
	if errors.Is(err, herdgate.ErrBackoff) {
		return "backoff"
	}
	if load, ok := errors.AsType[*herdgate.LoadError](err); ok {
		return load.Err.Error()
	}
	return err.Error()
}

// Change is a change of the key.
type Change struct {
	Op      string // "set", "delete", "expire", "clear", or "tags" for the tags of the policy
	Version int    // "set": of the new value
}

// Change makes a change.
func (s *service) Change(c Change, _ *struct{}) error {
	switch c.Op {
	case "set":
		return s.cache.Set(s.ctx, fleetKey, Item{Version: c.Version})
	case "delete":
		return s.cache.Delete(s.ctx, fleetKey)
	case "expire":
		return s.cache.Expire(s.ctx, fleetKey)
	case "clear":
		return s.cache.Clear(s.ctx)
	case "tags":
		return s.cache.InvalidateTags(s.ctx, s.Policy.Tags...)
	}
	return fmt.Errorf("no change %q", c.Op)
}

// Stats returns the counts of the cache.
func (s *service) Stats(_ struct{}, stats *herdgate.Stats) error {
	*stats = s.cache.Stats()
	return nil
}

// Sent returns how many commands the instance has sent, by name.
func (s *service) Sent(_ struct{}, sent *map[string]int) error {
	*sent = s.sent.counts()
	return nil
}

// Loop is a closed loop of callers: each calls, pauses, and calls again.
type Loop struct {
	Callers int
	Pause   time.Duration
	For     time.Duration
	Plain   bool // read and decode plainKey with nothing but go-redis
}

// Looped is what came of a Loop.
type Looped struct {
	Took     []time.Duration
	Outcomes map[string]int
	Oldest   time.Duration // age of the oldest value got
	Errors   map[string]int
}

// Run runs a loop.
func (s *service) Run(l Loop, all *Looped) error {
	*all = Looped{Outcomes: map[string]int{}, Errors: map[string]int{}}
	ctx, cancel := context.WithTimeout(s.ctx, l.For)
	defer cancel()
	call := s.lookup
	if l.Plain {
		call = s.plainRead
	}
	var mu sync.Mutex // protects all
	var callers sync.WaitGroup
	for i := range l.Callers {
		callers.Go(func() {
			one := Looped{Outcomes: map[string]int{}, Errors: map[string]int{}}
			timer := time.NewTimer(l.Pause * time.Duration(i) / time.Duration(l.Callers)) // not in step
			defer timer.Stop()
			for fires(ctx, timer) {
				one.call(call)
				timer.Reset(l.Pause)
			}
			mu.Lock()
			defer mu.Unlock()
			all.merge(one)
		})
	}
	callers.Wait()
	return nil
}

// fires reports whether timer fired before ctx ended.
func fires(ctx context.Context, timer *time.Timer) bool {
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (l *Looped) call(call func() (Item, string, error)) {
	began := time.Now()
	item, outcome, err := call()
	ended := time.Now()
	l.Took = append(l.Took, ended.Sub(began))
	l.Outcomes[outcome]++
	if err != nil {
		l.Errors[errorKind(err)]++
		return
	}
	l.Oldest = max(l.Oldest, ended.Sub(time.UnixMicro(item.At)))
}

func (l *Looped) merge(other Looped) {
	l.Took = append(l.Took, other.Took...)
	l.Oldest = max(l.Oldest, other.Oldest)
	addCounts(l.Outcomes, other.Outcomes)
	addCounts(l.Errors, other.Errors)
}

func (s *service) lookup() (Item, string, error) {
	r, err := s.cache.Lookup(s.ctx, fleetKey)
	return r.Value, r.Outcome.String(), err
}

func (s *service) plainRead() (item Item, _ string, err error) {
	b, err := s.rdb.Get(s.ctx, plainKey).Bytes()
	if err == nil {
		err = codec.Msgpack().Unmarshal(b, &item)
	}
	return item, "plain", err
}

// commandCounter counts the commands of a client. A pipeline counts with each.
type commandCounter struct {
	mu sync.Mutex
	n  map[string]int // protected by mu
}

func (c *commandCounter) count(cmds ...redis.Cmder) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[string]int{}
	}
	for _, cmd := range cmds {
		c.n[cmd.Name()]++
	}
}

func (c *commandCounter) counts() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.n)
}

// DialHook implements redis.Hook.
func (*commandCounter) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (c *commandCounter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.count(cmd)
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook implements redis.Hook.
func (c *commandCounter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.count(cmds...)
		return next(ctx, cmds)
	}
}
