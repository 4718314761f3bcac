package memlock_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/herdgate/herdgate/lock"
	"github.com/herdgate/herdgate/lock/locktest"
	"github.com/herdgate/herdgate/lock/memlock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newBackend(testing.TB) lock.Backend { return memlock.New() }

func TestBackendConforms(t *testing.T) { locktest.Run(t, newBackend) }

func TestBackendConformsInABubble(t *testing.T) { locktest.RunInBubble(t, newBackend) }
