package herdgatetest

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// conn is a connection that can be cut and whose answers can be late. The delay is
// here and not in the server, which would be locked meanwhile.
type conn struct {
	net.Conn
	link   *link
	cut    atomic.Bool // by a fault, not by the client
	once   sync.Once   // for Close
	closed chan struct{}

	mu       sync.Mutex // protects what follows
	answerAt time.Time  // when the answer to what was written last may be read
	deadline time.Time  // of reads; zero: none
}

// Write sends a command, or several.
func (c *conn) Write(p []byte) (int, error) {
	if d := c.link.delay(); d > 0 {
		c.mu.Lock()
		c.answerAt = time.Now().Add(d)
		c.mu.Unlock()
	}
	n, err := c.Conn.Write(p)
	return n, c.told(err)
}

// Read reads what has come, when it is due.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		return n, c.told(err)
	}
	c.mu.Lock()
	due, late := c.answerAt, !c.deadline.IsZero() && c.deadline.Before(c.answerAt)
	if late {
		due = c.deadline
	}
	c.mu.Unlock()
	if rest := time.Until(due); rest > 0 {
		timer := time.NewTimer(rest)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-c.closed:
			return 0, c.told(net.ErrClosed)
		}
	}
	if late {
		return 0, os.ErrDeadlineExceeded // the client gives the connection up, and with it p
	}
	return n, nil
}

// told is err as the client sees it: a server that went away is the end of the file.
func (c *conn) told(err error) error {
	if err != nil && c.cut.Load() {
		return io.EOF
	}
	return err
}

// SetReadDeadline bounds the Reads to come; zero means no bound.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	c.deadline = t
	c.mu.Unlock()
	return c.Conn.SetReadDeadline(t)
}

// SetDeadline bounds reads and writes.
func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// Close closes the connection. Further calls do nothing.
func (c *conn) Close() error {
	var err error
	c.once.Do(func() {
		c.link.remove(c)
		close(c.closed)
		err = c.Conn.Close()
	})
	return err
}
