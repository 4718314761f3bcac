package testutil

import (
	"bufio"
	"bytes"
	"slices"
	"strings"
	"testing"
)

func TestFramesEndWhereTheirValuesEnd(t *testing.T) {
	frames := []string{
		"+OK\r\n", "-ERR no\r\n", ":1\r\n", "_\r\n", "#t\r\n", ",1.5\r\n", "(12345678901234567890\r\n",
		"$3\r\nabc\r\n", "$0\r\n\r\n", "$-1\r\n", "$4\r\n\r\n\r\n\r\n", "!3\r\nERR\r\n", "=7\r\ntxt:abc\r\n",
		"*0\r\n", "*-1\r\n", "*2\r\n$1\r\na\r\n*1\r\n:1\r\n", "~1\r\n+a\r\n",
		"%2\r\n+a\r\n:1\r\n+b\r\n*2\r\n:1\r\n:2\r\n", ">2\r\n+message\r\n$1\r\nx\r\n",
		"|1\r\n+ttl\r\n:5\r\n$1\r\nv\r\n", "PING\r\n",
	}
	r := bufio.NewReader(strings.NewReader(strings.Join(frames, "")))
	for _, want := range frames {
		got, err := readFrame(r)
		if err != nil || string(got) != want {
			t.Fatalf("the frame is %q (%v), want %q", got, err, want)
		}
	}
	if got, err := readFrame(r); err == nil {
		t.Errorf("after the last frame comes %q", got)
	}
}

func TestALengthThatIsNoNumberIsNamed(t *testing.T) {
	_, err := readFrame(bufio.NewReader(bytes.NewReader([]byte("*x\r\n"))))
	if err == nil || !strings.Contains(err.Error(), `"*x\r\n"`) {
		t.Errorf("the error is %v, want one that shows the line", err)
	}
}

func TestWordsOfARequest(t *testing.T) {
	for request, want := range map[string][]string{
		"*2\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\n": {"GET", "a\r\nb"},
		"*1\r\n$0\r\n\r\n":                    {""},
		"PING\r\n":                            nil,
		"*1\r\n$9\r\nshort\r\n":               nil,
		"*1\r\n:1\r\n":                        nil,
	} {
		if got := Words([]byte(request)); !slices.Equal(got, want) {
			t.Errorf("Words(%q) = %q, want %q", request, got, want)
		}
	}
}
