module github.com/herdgate/herdgate/lock/zklock

go 1.26.0

replace github.com/herdgate/herdgate => ../..

require (
	github.com/go-zookeeper/zk v1.0.4
	github.com/herdgate/herdgate v0.0.0
)

require (
	github.com/alicebob/miniredis/v2 v2.40.0 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/redis/go-redis/v9 v9.23.0 // indirect
	github.com/yuin/gopher-lua v1.1.1 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	go.uber.org/goleak v1.3.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
)
