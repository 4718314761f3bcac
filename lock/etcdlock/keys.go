package etcdlock

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/herdgate/herdgate/lock"
)

// keys names claims: <namespace>/<name>/x/<owner>, and s in place of x for a shared one. Names and owners are escaped, so
// that the claims of one name are all under one prefix, where there are no others.
type keys struct{ namespace string }

func newKeys(namespace string) (keys, error) {
	legal := func(r rune) bool {
		return r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r)
	}
	if namespace == "" || strings.ContainsFunc(namespace, func(r rune) bool { return !legal(r) }) {
		return keys{}, fmt.Errorf("etcdlock: Namespace is %q: must match [A-Za-z0-9._-]+", namespace)
	}
	return keys{namespace}, nil
}

// all is the prefix of all claims of a name.
func (k keys) all(name string) string { return k.namespace + "/" + url.PathEscape(name) + "/" }

// kind is x for a claim that excludes all others, s for a shared one.
func kind(req lock.Request) string {
	if req.Shared {
		return "s"
	}
	return "x"
}

// claim is the key of an owner's claim.
func (k keys) claim(name, kind, owner string) string {
	return k.all(name) + kind + "/" + url.PathEscape(owner)
}

// exclusive is the prefix of the claims that exclude all others.
func (k keys) exclusive(name string) string { return k.all(name) + "x/" }

// rivals is the prefix of the claims that exclude the requested one if they are older.
func (k keys) rivals(req lock.Request) string {
	if req.Shared {
		return k.exclusive(req.Name)
	}
	return k.all(req.Name)
}
