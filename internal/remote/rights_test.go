package remote

import (
	"errors"
	"io"
	"slices"
	"testing"
)

func TestADenialIsReadInTheWordsOfEachRedis(t *testing.T) {
	for text, want := range map[string]string{
		// 6
		"NOPERM this user has no permissions to run the 'get' command or its subcommand":                                             "+get",
		"NOPERM this user has no permissions to access one of the keys used as arguments":                                            "~test:*",
		"NOPERM this user has no permissions to access one of the channels used as arguments":                                        "&test:*",
		"ERR Error running script (call to f_1): @user_script:1: The user executing the script can't run this command or subcommand": "+get",
		"The user executing the script can't run this command or subcommand":                                                         "+get",
		// 7.0
		"NOPERM this user has no permissions to run the 'get' command":                                               "+get",
		"ERR The user executing the script can't run this command or subcommand":                                     "+get",
		"ERR The user executing the script can't access at least one of the keys mentioned in the command arguments": "~test:*",
		"ERR The user executing the script can't publish to the channel mentioned in the command":                    "&test:*",
		"ERR Unknown Redis command called from script":                                                               "+get",
		"ERR unknown command 'get', with args beginning with: ":                                                      "+get",
		// 7.2
		"NOPERM User key channel has no permissions to run the 'get' command":                 "+get",
		"NOPERM No permissions to access a key":                                               "~test:*",
		"NOPERM No permissions to access a channel":                                           "&test:*",
		"NOPERM ACL failure in script: User gate has no permissions to run the 'get' command": "+get",
		"NOPERM ACL failure in script: No permissions to access a key":                        "~test:*",
		"NOPERM ACL failure in script: No permissions to access a channel":                    "&test:*",
	} {
		var l lacking
		l.note(refusal(text), "get", "test:*", "test:*")
		l.note(refusal(text), "get", "test:*", "test:*")
		if got := l.denied.Missing; !slices.Equal(got, []string{want}) {
			t.Errorf("%q: %v is missing, want %s", text, got, want)
		}
		if err := l.or(nil); !Rejected(err) || !Rejected(refusal(text)) {
			t.Errorf("%q does not count as a rejection", text)
		}
	}
}

func TestWhatPassesByItselfIsNoRejection(t *testing.T) {
	for _, text := range []string{"NOAUTH Authentication required.", "WRONGPASS invalid username-password pair", "DENIED Redis is running in protected mode", "ERR AUTH <password> called without any password configured"} {
		if !Rejected(refusal(text)) {
			t.Errorf("%q does not count as a rejection", text)
		}
	}
	for _, err := range []error{
		nil, io.EOF, ErrNoAnswer, errors.New("NOPERM says somebody else"),
		refusal("LOADING Redis is loading the dataset in memory"), refusal("BUSY Redis is busy running a script."),
		refusal("READONLY You can't write against a read only replica."), refusal("OOM command not allowed when used memory > 'maxmemory'."),
		refusal("CLUSTERDOWN The cluster is down"), refusal("ERR max number of clients reached"), refusal("MOVED 1 127.0.0.1:7000"),
	} {
		if Rejected(err) {
			t.Errorf("%v counts as a rejection", err)
		}
		var l lacking
		if l.note(err, "get", "test:*", "test:*"); err == nil && l.or(nil) != nil {
			t.Errorf("%v says that something is missing", err)
		}
	}
}
