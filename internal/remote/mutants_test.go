package remote

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/herdgate/herdgate/internal/testutil"
)

// mutant is a script with one fault: old, which stands in it once, became new.
type mutant struct {
	what     string
	script   string // "" = prelude
	old, new string
}

// mutants are the faults that the random steps must find.
func mutants() []mutant {
	const (
		ours   = "owner ~= ARGV[1] or nonce ~= ARGV[2]"
		wake   = "if waited == '1' then"
		resend = "redis.call('PEXPIRE', KEYS[2], ARGV[2])\n    return {'GRANTED', stamp, grant, tonumber(c)}"
		fresh  = "redis.call('SET', KEYS[2], 'L ' .. w .. ' ' .. stamp .. ' ' .. c .. ' ' .. owner, 'PX', ARGV[2])\n" +
			"    return {'GRANTED', stamp, stamp, tonumber(c)}"
	)
	return []mutant{
		{"a mark for ever", "", "redis.call('SET', key, mark, 'PX', ms)", "redis.call('SET', key, mark)"},
		{"a cooling rounded down", "", "math.ceil((tonumber(nonce)", "math.floor((tonumber(nonce)"},
		{"a version of other bytes", "", "string.sub(entry, 37, 44)", "string.sub(entry, 36, 43)"},
		{"a build time in µs", "", "math.floor(now / 1000)", "now"},
		{"a build time in little-endian", "", "for i = 8, 1, -1 do", "for i = 1, 8 do"},

		{"the entry's version does not count", "acquire", "version(v) ~= ARGV[3]", "false"},
		{"every entry is newer", "acquire", "version(v) ~= ARGV[3]", "true"},
		{"notAfter ignored", "acquire", "now > tonumber(ARGV[4])", "false"},
		{"B of another type stays", "acquire", "failed(b) or ms < 0", "ms < 0"},
		{"B without an end stays", "acquire", "failed(b) or ms < 0", "failed(b)"},
		{"a new nonce for the same acquisition", "acquire", resend, fresh},
		{"a resend is not known as ours", "acquire", "if owner == ARGV[1] then", "if false then"},
		{"a resend does not extend", "acquire", "redis.call('PEXPIRE', KEYS[2], ARGV[2])", ""},
		{"a second lease", "acquire", "if owner then --", "if false then --"},
		{"waiters are not marked", "acquire", "redis.pcall('SETRANGE', KEYS[2], 2, '1')", ""},
		{"everybody waits", "acquire", "if ARGV[5] == '1' and w == '0' then", "if true then"},
		{"a waiter shortens the lease", "acquire", "redis.pcall('SETRANGE', KEYS[2], 2, '1')", "redis.call('SET', KEYS[2], 'L 1' .. string.sub(b, 4), 'PX', math.max(ms, 1))"},
		{"cooling ignored", "acquire", "if kind == 'C' then", "if false then"},
		{"pass ignored", "acquire", "if kind == 'P' then", "if false then"},
		{"back-off ignored", "acquire", "if left > 0 then", "if false then"},
		{"a lease does not stand against another locker", "acquire", "if owner then --", "if owner and ARGV[6] ~= 'mine' then --"},
		{"another locker's refusal ignored", "acquire", "if ARGV[6] == 'theirs' then", "if false then"},
		{"another locker ends a cooling", "acquire", "if kind == 'C' then", "if kind == 'C' and ARGV[6] ~= 'mine' then"},
		{"another locker ends a back-off", "acquire", "if left > 0 then", "if left > 0 and ARGV[6] ~= 'mine' then"},
		{"another locker ends a pass", "acquire", "if kind == 'P' then", "if kind == 'P' and ARGV[6] ~= 'mine' then"},
		{"who another locker has refused is not woken", "acquire", "ARGV[6] == 'mine' and '1' or '0'", "'0'"},
		{"everybody is woken", "acquire", "ARGV[6] == 'mine' and '1' or '0'", "'1'"},
		{"failures forgotten by a retry", "acquire", "last, count = tonumber(g), tonumber(n)", "last = tonumber(g)"},
		{"a lease without an end", "acquire", "held, 'PX', ARGV[2], 'NX')", "held, 'NX')"},
		{"a lease that was taken has no end", "acquire", "held, 'PX', ARGV[2])", "held)"},

		{"renewed without the owner", "renew", ours, "nonce ~= ARGV[2]"},
		{"renewed without the nonce", "renew", ours, "owner ~= ARGV[1]"},
		{"a renewal without effect", "renew", "redis.call('PEXPIRE', KEYS[1], ARGV[3])", ""},

		{"committed without the owner", "commit", ours, "nonce ~= ARGV[2]"},
		{"committed without the nonce", "commit", ours, "owner ~= ARGV[1]"},
		{"committed without a lease", "commit", ours, "false"},
		{"a resent commit is refused", "commit", "version(v) == version(ARGV[3])", "false"},
		{"a refused commit says it stored", "commit", "{'REFUSED', stamp}", "{'STORED', stamp}"},
		{"the build time is the caller's", "commit", "stamped(ARGV[3], now)", "ARGV[3]"},
		{"an entry that lives for ever", "commit", "stamped(ARGV[3], now), 'PX', ARGV[4])", "stamped(ARGV[3], now))"},
		{"the lease stays after a commit", "commit", "rest(KEYS[2], nonce, 0, cooling)", ""},
		{"no cooling after a commit", "commit", "rest(KEYS[2], nonce, 0, cooling)", "redis.call('DEL', KEYS[2])"},
		{"failures count on after a commit", "commit", "rest(KEYS[2], nonce, 0,", "rest(KEYS[2], nonce, count,"},
		{"a commit wakes nobody", "commit", wake, "if false then"},
		{"a commit wakes who does not wait", "commit", wake, "if true then"},

		{"finished by a stranger", "finish", ours, "not owner"},
		{"finished without the owner", "finish", ours, "nonce ~= ARGV[2]"},
		{"finished without the nonce", "finish", ours, "owner ~= ARGV[1]"},
		{"no cooling after a finish", "finish", "cool(nonce, now, ARGV[7])", "0"},
		{"a mark that ends the interval early", "finish", "math.max(tonumber(ARGV[4]), cooling)", "tonumber(ARGV[4])"},
		{"failures do not count", "finish", "(count + 1)", "count"},
		{"a failure forgotten when its back-off ends", "finish", "2 * ms)", "ms)"},
		{"what is gone at its source stays", "finish", "if ARGV[6] == '1' then", "if false then"},
		{"what is still there goes", "finish", "if ARGV[6] == '1' then", "if true then"},
		{"a finish wakes nobody", "finish", "if waited == '1' or", "if"},

		{"notAfter ignored", "change", "now > tonumber(ARGV[2])", "false"},
		{"a change leaves the lease", "change", "if nonce then", "if false then"},
		{"no cooling after a change", "change", "cool(nonce, now, ARGV[3])", "0"},
		{"a delete ends a back-off", "change", "if not nonce and op == 'set' and", "if not nonce and"},
		{"a set keeps a back-off", "change", "if not nonce and op == 'set' and", "if false and"},
		{"failures count on after a set", "change", "if op == 'set' then count = 0 end", ""},
		{"a delete that deletes nothing", "change", "else\n  redis.call('DEL', KEYS[1])\nend", "end"},
		{"an expire of other bytes", "change", "KEYS[1], 16, string.rep", "KEYS[1], 24, string.rep"},
		{"a set entry that lives for ever", "change", "stamped(ARGV[6], now), 'PX', ARGV[7])", "stamped(ARGV[6], now))"},
		{"the set entry's build time is the caller's", "change", "stamped(ARGV[6], now)", "ARGV[6]"},
		{"a change that is not told", "change", "local told = redis.pcall('PUBLISH', ARGV[4], ARGV[5])", "local told"},
	}
}

// infect puts the fault into a store's scripts.
func (m mutant) infect(t *testing.T, s *Store) {
	t.Helper()
	sources := map[string]string{
		"": preludeSource, "acquire": acquireSource, "renew": renewSource, "commit": commitSource, "finish": finishSource, "change": changeSource,
	}
	if n := strings.Count(sources[m.script], m.old); n != 1 {
		t.Fatalf("%q stands %d times in the source, want once", m.old, n)
	}
	for _, sc := range []*script{s.acquire, s.renew, s.commit, s.finish, s.change} {
		if m.script == "" || m.script == sc.name {
			sc.source = strings.Replace(sc.source, m.old, m.new, 1)
		}
	}
}

func TestRandomInterleavingsFindEveryFaultOfAScript(t *testing.T) {
	const worlds = 40 // fixed ones: what is found is always found
	for _, m := range mutants() {
		t.Run(strings.TrimSpace(m.script+" "+m.what), func(t *testing.T) {
			var err error
			for seed := uint64(0); seed < worlds && err == nil; seed++ {
				synctest.Test(t, func(t *testing.T) {
					_, client := testutil.NewBubbleRedis(t)
					store := newStore(client())
					m.infect(t, store)
					must(t, store.Load(t.Context())) // a mutant that is no script would be found too easily
					err = play(t, store, seed, randomSteps, false)
				})
			}
			if err == nil {
				t.Error("nobody noticed")
			}
		})
	}
}
