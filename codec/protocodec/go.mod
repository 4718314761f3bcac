module github.com/herdgate/herdgate/codec/protocodec

go 1.26.0

replace github.com/herdgate/herdgate => ../..

require (
	github.com/herdgate/herdgate v0.0.0
	google.golang.org/protobuf v1.36.12
)

require (
	github.com/vmihailenco/msgpack/v5 v5.4.1 // indirect
	github.com/vmihailenco/tagparser/v2 v2.0.0 // indirect
)
