// Package herdgatetest is for the tests of services that use herdgate: a gate on an
// embedded Redis, a source that counts its loads, faults to switch on, and a herd.
// Only tests should import it.
//
// [Stampede] shows whether a service's cache keeps the herd off its source:
//
//	func TestAProductIsLoadedOnceByAFleet(t *testing.T) {
//		var database herdgatetest.Origin[Product]
//		database.Set("42", Product{ID: "42", Name: "Teapot"})
//		database.SetDelay(100 * time.Millisecond)
//		newShop := func(gate *herdgate.Gate) (*Shop, error) { return NewShop(gate, database.Load) }
//		herdgatetest.Stampede(t, 5, 100, newShop, func(ctx context.Context, s *Shop) (Product, error) {
//			return s.Product(ctx, "42")
//		})
//	}
//
// Everything else runs in a bubble of [testing/synctest], where an hour passes at
// once when all goroutines wait, and synctest.Wait returns when every message has
// arrived:
//
//	func TestAnOldProductIsServedWhileTheDatabaseIsOut(t *testing.T) {
//		synctest.Test(t, func(t *testing.T) {
//			var database herdgatetest.Origin[Product]
//			database.Set("42", Product{ID: "42", Name: "Teapot"})
//			shop := newShop(t, herdgatetest.Open(t), &database)
//			wantName(t, shop, "Teapot")
//			database.FailAll(errors.New("too many connections"))
//			time.Sleep(30 * time.Minute)
//			wantName(t, shop, "Teapot")
//		})
//	}
//
// What a test makes in a bubble belongs to it: two bubbles share no Redis, gate or
// cache. Nothing here uses a socket, and a test must not use one in a bubble: a
// goroutine that waits for a socket stops the clock. The embedded Redis is no proof
// of how a real one behaves.
package herdgatetest
