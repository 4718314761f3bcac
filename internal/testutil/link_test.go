package testutil

import (
	"bufio"
	"io"
	"net"
	"testing"
	"time"
)

// echo answers each line with itself.
func echo(t *testing.T) (addr string) {
	t.Helper()
	l := listen(t, loopback(0))
	t.Cleanup(func() { _ = l.Close() })
	go func() { // until the test closes the listener
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(conn, conn) }() // until the link closes it
		}
	}()
	return l.Addr().String()
}

// caller is a client that says lines.
type caller struct {
	net.Conn
	lines *bufio.Reader
}

func call(t *testing.T, addr string) caller {
	t.Helper()
	var d net.Dialer
	conn, err := d.DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return caller{conn, bufio.NewReader(conn)}
}

// say returns what comes back within a while.
func (c caller) say(line string, within time.Duration) (string, error) {
	if _, err := io.WriteString(c, line+"\n"); err != nil {
		return "", err
	}
	_ = c.SetReadDeadline(time.Now().Add(within))
	return c.lines.ReadString('\n')
}

func TestALinkCarriesCutsFreezesAndSwallows(t *testing.T) {
	const soon, patience = 50 * time.Millisecond, 10 * time.Second
	link := NewLink(t, echo(t))
	answers := func(c caller, line string) {
		t.Helper()
		if got, err := c.say(line, patience); got != line+"\n" {
			t.Fatalf("said %q and got %q, %v", line, got, err)
		}
	}
	c := call(t, link.Addr())
	answers(c, "one")

	link.Freeze()
	if got, err := c.say("two", soon); err == nil {
		t.Fatalf("a frozen link answers %q", got)
	}
	link.Thaw()
	_ = c.SetReadDeadline(time.Now().Add(patience))
	if got, err := c.lines.ReadString('\n'); got != "two\n" {
		t.Fatalf("what was held back comes as %q, %v", got, err)
	}

	link.Cut()
	if got, err := c.say("three", patience); err == nil {
		t.Fatalf("a cut link answers %q", got)
	}
	link.Resume()
	c = call(t, link.Addr())
	answers(c, "four")

	link.SwallowReplies()
	if got, err := c.say("five", soon); err == nil {
		t.Fatalf("a link that swallows replies answers %q", got)
	}
	link.Speak()
	answers(call(t, link.Addr()), "six")
}
