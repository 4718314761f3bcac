package testutil

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

func TestADeadlineReachesAReadUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		defer func() { _ = server.Close() }()
		c := newBufferedConn(client)
		defer func() { _ = c.Close() }()
		read := make(chan error)
		go func() {
			_, err := c.Read(make([]byte, 1))
			read <- err
		}()
		synctest.Wait()
		_ = c.SetDeadline(time.Now().Add(time.Second))
		if err := <-read; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("Read ends with %v, want that its deadline passed", err)
		}
	})
}

func TestWhatAServerSentBeforeItClosedIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		c := newBufferedConn(client)
		defer func() { _ = c.Close() }()
		if _, err := server.Write([]byte("last words")); err != nil {
			t.Fatal(err)
		}
		_ = server.Close()
		if _, err := c.Write([]byte("too late")); err != nil {
			t.Errorf("Write after the server closed: %v, want nothing until the next Read", err)
		}
		if got, err := io.ReadAll(c); string(got) != "last words" || err != nil {
			t.Errorf("Read returns %q, %v", got, err)
		}
	})
}
